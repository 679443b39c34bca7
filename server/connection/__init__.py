"""The sockets, TLS, and the bounds on connections."""
