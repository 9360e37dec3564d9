"""`nanoserve bench`: workloads of random token ids, run through the engine without text, measured and compared."""
