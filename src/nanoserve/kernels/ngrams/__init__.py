"""Drafts from a row's own past: the tokens after an earlier occurrence of its newest tokens (prompt lookup decoding, Saxena 2023).

The newest 4 tokens are looked for in what is before them, else the newest 3, else 2; of several places the rightmost counts. Where
what followed then comes to the row's end, it is read as a period that goes on.
"""
