"""Routes that vLLM has besides OpenAI's."""
