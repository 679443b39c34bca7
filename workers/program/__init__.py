"""A forward pass: the vocabulary in which it is written, and how it is laid out for native code."""
