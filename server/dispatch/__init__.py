"""Carries plans to the workers and their answers back over ZeroMQ."""
