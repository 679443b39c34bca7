"""Admits requests, runs the step loop, detokenizes and streams."""
