"""What the documentation takes from the code: ``python -m tests.documentation`` writes it anew (`make docs`)."""
