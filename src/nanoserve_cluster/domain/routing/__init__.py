"""Which replica gets a request: what a router knows of replicas, where prefixes are, and policies that choose."""
