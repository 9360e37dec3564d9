"""Products of a few rows with a stored weight whose words go straight into the registers of the tensor cores."""
