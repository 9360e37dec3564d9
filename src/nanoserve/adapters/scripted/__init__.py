"""Shipped fakes, named by behaviour: adapters that compute no model, for tests, teaching and benchmarks of the control plane."""
