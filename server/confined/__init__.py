"""Processes for work that must neither hold up nor harm the server."""
