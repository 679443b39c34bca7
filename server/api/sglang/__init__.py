"""SGLang's own surface, beside what its extensions add to OpenAI's.

Its errors have the shape ``{"error": {"message"}}``, which OpenAI's fill.
"""
