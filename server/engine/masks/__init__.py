"""Masks of constrained sequences: the matchers that compute them, and their delivery to rank 0."""
