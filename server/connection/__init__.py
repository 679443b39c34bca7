"""Sockets, TLS, and the bounds on connections."""
