"""Spans of requests for an OpenTelemetry collector; imported only when tracing is on."""
