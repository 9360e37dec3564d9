"""What lets the tokens of a sequence read one another; a folder for each kind."""
