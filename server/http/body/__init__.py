"""Request bodies: bounded, decoded and validated; long bodies are decoded outside the event loop."""
