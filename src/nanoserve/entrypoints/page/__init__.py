"""The page in the browser: its files, and the routes that serve them."""
