"""Shipped presets, as data: hosts and models."""
