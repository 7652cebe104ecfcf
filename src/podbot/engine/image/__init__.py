"""Images: pulled, imported, and those of podbot that need no registry."""
