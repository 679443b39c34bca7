"""Mixers, which combine the tokens of a sequence, and their parts."""
