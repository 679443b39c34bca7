"""Figures of a running server's steps: `numaserve profile`."""
