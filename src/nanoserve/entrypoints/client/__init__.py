"""The client side of our own programs, for servers that speak OpenAI's protocol, ours or another."""
