"""Benchmarks of the operations of a step, one file for each kind."""
