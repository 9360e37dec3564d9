"""The process that computes: an engine, driven by commands from the process that talks to clients."""
