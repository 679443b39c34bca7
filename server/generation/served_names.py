"""Names of the served model, as clients write them."""

LATEST = ":latest"  # Ollama's tag of whatever has none
