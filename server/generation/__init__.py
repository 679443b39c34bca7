"""The path from an API surface to the engine: the request, and the events that answer it."""
