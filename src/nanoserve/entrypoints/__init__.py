"""Where the engine is assembled and offered: the command line and the offline Python interface."""
