"""``python -m numaserve``: the command, where it is not on the path.

The import root is a namespace: an ``__init__.py`` next to this file would hide folders in other places, such as those
of a checkout next to an installation.
"""

from numaserve.server.cli.main import main

if __name__ == "__main__":
    main()
