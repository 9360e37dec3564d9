"""The engine's end: it takes commands between two turns, and reports each turn."""
