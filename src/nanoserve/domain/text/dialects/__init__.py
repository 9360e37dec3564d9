"""How model families write reasoning, text and tool calls: one table of values, one parser, one grammar."""
