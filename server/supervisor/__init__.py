"""Starts the worker processes, watches that they live and progress, and ends them."""
