"""Layers: each declares its parameters once, and appends its operations to a program.

Everything else that has to be known of a model's weights (shapes, formats, bytes of a rank, loading, checks, names in
GGUF files) is a fold over the declarations.
"""
