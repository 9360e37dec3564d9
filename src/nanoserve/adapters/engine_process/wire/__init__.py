"""Commands and reports between processes: msgpack with a schema, in length-prefixed frames. Never pickle."""
