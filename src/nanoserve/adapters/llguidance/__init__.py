"""Grammars by llguidance: `ports.Grammars` over the vocabulary of a tokenizer."""
