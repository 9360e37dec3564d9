"""The service over HTTP: Litestar routes for every protocol, with guards, counters and logs."""
