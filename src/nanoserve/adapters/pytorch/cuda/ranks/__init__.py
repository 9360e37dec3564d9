"""Steps on a GPU that computes one model together with others."""
