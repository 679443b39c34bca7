"""Weights: file formats, the model hub, and how tensors are divided over the ranks."""
