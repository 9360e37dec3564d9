"""The parts that model pages are made of."""
