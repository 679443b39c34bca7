"""The run of a server: checks, loading, listening, serving, draining."""
