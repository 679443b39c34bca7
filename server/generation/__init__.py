"""The one way from a surface to the engine: what is asked for, and the events that answer it."""
