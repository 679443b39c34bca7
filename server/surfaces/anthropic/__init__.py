"""Anthropic's surface: the Messages API."""
