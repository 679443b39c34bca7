"""Parsing of answers: incrementally, or as a whole."""
