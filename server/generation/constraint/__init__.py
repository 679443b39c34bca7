"""Constraints of an answer: the client's, and those of its tool calls."""
