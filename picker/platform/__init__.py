"""What an orchestration platform orders, and what it is told: the two documents, without I/O."""
