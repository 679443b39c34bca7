"""The shared-memory ring through which the ranks of a group synchronise."""
