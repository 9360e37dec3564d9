"""Looks into a recorded run: as a page, as a report in one file, as a picture, as a table."""
