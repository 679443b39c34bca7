"""API keys: the identification of clients, and the limits of each key."""
