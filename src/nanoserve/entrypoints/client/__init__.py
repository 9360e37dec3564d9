"""What our own programs need to talk to a server that speaks OpenAI's protocol, ours or another."""
