"""Mixers, in which tokens of a sequence meet, and the parts that they are composed of."""
