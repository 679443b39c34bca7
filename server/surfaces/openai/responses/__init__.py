"""OpenAI's Responses API: items in and out, events, and stored responses."""
