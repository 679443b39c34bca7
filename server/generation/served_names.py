"""Names of the served model in clients' requests."""

LATEST = ":latest"  # Ollama's default tag
