"""Tokenizers and chat templates, read from the files in which models are published."""
