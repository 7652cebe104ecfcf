"""Settings and places: what podbot is told by the machine and its user, before any sandbox."""
