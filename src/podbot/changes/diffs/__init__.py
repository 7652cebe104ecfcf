"""What changed within a file, for people, for picking and for `git apply`: nothing here writes."""
