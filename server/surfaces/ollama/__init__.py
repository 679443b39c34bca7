"""Ollama's surface: https://docs.ollama.com/api."""
