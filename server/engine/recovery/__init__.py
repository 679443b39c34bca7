"""The death of the workers: what becomes of the requests, and how long an outage lasts."""
