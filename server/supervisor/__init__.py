"""Starts the worker processes, checks that they are alive and make progress, and ends them."""
