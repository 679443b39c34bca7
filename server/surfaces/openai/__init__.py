"""OpenAI's surface, with the extensions that vLLM and SGLang have for it."""
