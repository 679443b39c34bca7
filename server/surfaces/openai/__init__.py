"""OpenAI's surface, with its extensions by vLLM and SGLang."""
