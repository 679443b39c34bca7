"""The version that is installed."""

import importlib.metadata


def installed_version() -> str:
    """The version of the installed distribution."""
    try:
        return importlib.metadata.version("numaserve")
    except importlib.metadata.PackageNotFoundError:  # a source tree on the path
        return "0+source"
