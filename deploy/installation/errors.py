"""The error that an installation ends with."""


class InstallationError(Exception):
    """A mistake that the operator can correct, reported in one line before anything is written."""
