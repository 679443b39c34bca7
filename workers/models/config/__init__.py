"""Reads configurations: config.json, a GGUF file's metadata, and what both say about quantization."""
