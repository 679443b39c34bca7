"""The wheel of ``make wheel``, installed and served as a user without a compiler would: ``make test-wheel``."""
