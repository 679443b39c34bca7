"""Drafters: what guesses the next tokens of a sequence."""
