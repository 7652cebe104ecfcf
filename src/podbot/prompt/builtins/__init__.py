"""Sections that come with the prompt package itself. Each is imported from its own module."""
