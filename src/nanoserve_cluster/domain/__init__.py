"""Pure Python over nanoserve's domain: the simulation of a cluster, and the policies that choose a replica."""
