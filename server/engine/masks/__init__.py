"""Masks of constrained sequences: the matchers that compute the masks, and the way of a mask to rank 0."""
