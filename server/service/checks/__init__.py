"""Checks before the start: processor, backend and tokenizer."""
