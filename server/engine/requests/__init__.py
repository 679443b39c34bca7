"""The requests that have been admitted and have not ended."""
