"""The operation between the projections and latent attention: the cache entry of each token, and the rotation of its queries.

The latent is normed, the one key of all heads rotated in the rotate-half layout (Su et al. 2021), and both are written into the
paged cache; the part of each query head that has a position is rotated to behind the part that is absorbed.
"""
