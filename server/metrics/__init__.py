"""The metrics that Prometheus scrapes."""
