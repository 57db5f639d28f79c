"""What a profile says: times, memory, and what could be better."""
