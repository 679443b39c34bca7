"""The clients with which a command, or another server, reaches a running server."""
