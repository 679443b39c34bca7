"""OpenAI's Responses API: items in and out, events, and answers that are kept for a while."""
