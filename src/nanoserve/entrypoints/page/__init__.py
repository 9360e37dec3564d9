"""The page in the browser: its files, and the same page over a recorded run."""
