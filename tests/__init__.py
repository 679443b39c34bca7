"""A package: pytest then puts the repository on the import path, and tests share `tests.support`."""
