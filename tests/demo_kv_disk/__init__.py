"""A long prompt that is computed, read back from disk after a kill and a restart, and damaged on disk."""
