"""``python -m numaserve``: the command, where it is not on the path.

The import root is a namespace: an ``__init__.py`` beside this file would hide the folders of other places, such as a
checkout's next to an installation's.
"""

from numaserve.server.cli.main import main

if __name__ == "__main__":
    main()
