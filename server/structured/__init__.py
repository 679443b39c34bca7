"""Grammars: what a client says an answer must look like, compiled to masks of tokens by llguidance."""
