"""The data plane on torch: models, their weights and KV cache, and the runner that computes steps with them."""
