"""Work that can wait: files of requests, and batches that have them answered."""
