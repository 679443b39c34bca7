"""The image of ``make container``, run as an operator would run it: ``make test-container``."""
