"""What a GPU does otherwise where several of them compute one model together."""
