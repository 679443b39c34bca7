"""Text work of requests: tokenizing, detokenizing and rendering chat templates, in separate threads, with fair
admission."""
