"""The engine's end: commands come in between two turns, and what a turn brings goes out."""
