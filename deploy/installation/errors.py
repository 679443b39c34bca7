"""The error that an installation ends with."""


class InstallationError(Exception):
    """A mistake that the operator can mend: one line, told before anything is written."""
