"""Estimates of a model's steps on a host that is only described: the same forward pass, counted instead of run."""
