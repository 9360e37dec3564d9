"""The protocols that the server speaks, one folder each; they do not know each other."""
