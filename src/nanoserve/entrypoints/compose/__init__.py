"""Composition: settings are read, choices made, and adapters put together; the only room that names adapters."""
