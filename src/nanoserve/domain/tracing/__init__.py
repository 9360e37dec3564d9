"""The step log: recorded from a running engine, and replayed to its exact states."""
