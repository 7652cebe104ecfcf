"""Where an engine is: endpoints, the order of candidates, connecting, a service of our own."""
