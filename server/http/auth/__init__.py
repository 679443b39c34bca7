"""API keys: whose a request is, and the limits of its key."""
