"""Running a command in a sandbox as if it ran bare, joined to the streams of whoever asked."""
