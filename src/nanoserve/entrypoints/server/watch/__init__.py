"""What operators read of a running server: health, metrics, facts, the live page's feed, traces."""
