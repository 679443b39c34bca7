"""The life of the server: checks, loading, listening, serving, draining."""
