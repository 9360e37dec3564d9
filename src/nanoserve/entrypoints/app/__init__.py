"""The service behind every protocol: orders in, generations out, over an engine in another process."""
