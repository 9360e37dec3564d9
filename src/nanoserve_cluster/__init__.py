"""Many servers of nanoserve: simulated, behind one router, and on Ray. `nanoserve` does not know this package; its commands are entry points."""
