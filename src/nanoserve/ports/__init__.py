"""The language of the hexagon: the values that cross its walls and the protocols that adapters fulfil."""
