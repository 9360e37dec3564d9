"""An engine in another process (or thread): the host it runs in, the client that uses it, and the wire between them."""
