"""The HTTP APIs: one folder for each."""
