"""Matchers: one sequence's walk through a grammar, in this process or in another."""
