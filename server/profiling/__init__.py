"""Figures of a running server: `numaserve profile` and `numaserve top`."""
