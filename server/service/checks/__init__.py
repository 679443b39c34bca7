"""The checks before the start: processor, backend and tokenizer."""
