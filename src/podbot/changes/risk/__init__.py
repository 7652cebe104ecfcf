"""What would run once changes are applied: `judging` asks, the others know one kind each."""
