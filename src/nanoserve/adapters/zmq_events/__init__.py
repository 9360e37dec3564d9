"""KV events over ZeroMQ, as vLLM publishes them: its frames, its msgpack, its replay."""
