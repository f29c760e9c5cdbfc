"""What things cost: time, memory and work, of ours and of peers."""
