"""The control plane: pure, synchronous, deterministic Python that depends only on `nanoserve.ports`."""
