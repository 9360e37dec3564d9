"""Multi-head latent attention: keys and values of all heads are made of one vector per token."""
