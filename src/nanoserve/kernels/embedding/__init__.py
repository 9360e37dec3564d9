"""The embedding lookup on a GPU, straight from the tokens that rows keep there."""
