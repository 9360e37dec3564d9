"""`nanoserve simulate` and `nanoserve bench calibrate`: a cluster on paper, and how long a step takes on a device."""
