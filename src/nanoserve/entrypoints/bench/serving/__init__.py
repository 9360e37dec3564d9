"""Load over HTTP: sends requests to a server on a schedule and says how long the answers took."""
