"""Bindings of the ports to torch, transformers and the machine; each sub-package is a stranger to the others."""
