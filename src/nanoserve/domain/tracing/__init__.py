"""The step log: recorded from a running engine, and replayed to exactly the states it had."""
