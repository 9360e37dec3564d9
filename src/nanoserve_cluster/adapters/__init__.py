"""Bindings of the cluster's ports: published traces of requests, and a runner that only counts time."""
