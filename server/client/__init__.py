"""The way from a command, or another server, to a running server."""
