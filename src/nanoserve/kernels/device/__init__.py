"""Functions that kernels on a GPU call, each written once: the online softmax, gates, loads of tiles, and waits of launches."""
