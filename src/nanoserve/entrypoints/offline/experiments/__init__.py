"""Six scripted experiments, each of which makes one idea of the engine visible: the program behind `nanoserve watch`."""
