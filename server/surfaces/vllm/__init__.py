"""Routes that vLLM has in addition to OpenAI's."""
