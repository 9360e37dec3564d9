"""The machine underneath: its clock, and the facts about it that belong in a bug report."""
