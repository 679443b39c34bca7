"""Starts the worker processes, watches their life and progress, and ends them."""
