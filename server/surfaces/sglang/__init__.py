"""SGLang's own API; its extensions of OpenAI's API are in `openai`.

Its errors have the format ``{"error": {"message"}}``, which OpenAI's errors satisfy.
"""
