"""Conversations: their messages, and what chat templates make of them."""
