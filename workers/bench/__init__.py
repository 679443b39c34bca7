"""Measurements of the parts that serve, each beside the best that the machine allows in the same minute."""
