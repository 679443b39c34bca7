"""Quantized checkpoints: one file for each published layout, all decoded into one form."""
