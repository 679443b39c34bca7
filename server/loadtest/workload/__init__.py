"""The requests of a load, and their send times."""
