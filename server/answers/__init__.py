"""Parsers of what models write: formats of tool calls and thoughts, and response templates."""
