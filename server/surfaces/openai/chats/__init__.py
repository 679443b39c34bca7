"""The chat API: its fields, messages and tools, and its answers."""
