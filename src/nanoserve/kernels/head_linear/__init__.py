"""A linear layer for each head: the products around latent attention, which take queries to latents and latents to values."""
