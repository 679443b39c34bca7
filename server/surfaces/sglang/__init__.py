"""SGLang's own API; its extensions of OpenAI's API are in `openai`.

Its errors have the shape ``{"error": {"message"}}``, which OpenAI's fill.
"""
