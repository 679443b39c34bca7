"""Spans of requests for an OpenTelemetry collector; nothing of it is imported unless somebody asks for it."""
