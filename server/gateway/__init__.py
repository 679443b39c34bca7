"""The gateway to several models: a process without an engine, which passes requests to one model process per model."""
