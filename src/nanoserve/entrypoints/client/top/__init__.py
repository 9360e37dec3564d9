"""A running server's numbers in a terminal: the program behind `nanoserve top`."""
