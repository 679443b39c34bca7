"""Formats of thoughts: the marks as data, chosen by the chat template."""
