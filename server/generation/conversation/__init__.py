"""Conversations: their messages, and their form for chat templates."""
