"""Products whose weight the copy engine of Hopper fetches."""
