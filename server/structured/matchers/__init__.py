"""Matchers: the position of one sequence in a grammar, in this process or in another."""
