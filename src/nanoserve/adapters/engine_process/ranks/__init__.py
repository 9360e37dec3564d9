"""Processes that compute one model together: the first rank has the engine, and the others follow its plans."""
