"""The service over HTTP: Litestar routes for every protocol, and what guards, counts and logs them."""
