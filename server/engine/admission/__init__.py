"""Admission of requests to the queue."""
