"""Other engines, for `python -m benchmarks.offline --vs`: programs that `benchmarks.peers.running` starts, one per engine.

A program reads one JSON job on standard input and writes its JSON result to the file that its argument names, because
libraries print what they like to standard output. `job.py` says what both look like.
"""
