"""A demonstration of several adapters on one model, which anyone can run."""
