"""From files to filled models."""
