"""`nanoserve bench`: random token ids through the engine, without text, and load over HTTP; measured and reported."""
