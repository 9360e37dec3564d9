"""What the GPUs of one machine add up between them: rows that lie in the memory of each, read where they are."""
