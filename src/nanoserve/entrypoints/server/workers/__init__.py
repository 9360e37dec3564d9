"""Several HTTP processes over one engine: one process keeps the engine, the others answer what needs no memory."""
