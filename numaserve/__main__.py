"""``python -m numaserve``: the command, where it is not on the path.

The import root is a namespace: an ``__init__.py`` next to this file would hide folders in other places, such as those
of a checkout next to an installation.
"""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The working folder: of a model, whose files run no code, or with a checkout, in which nothing is compiled.
        del sys.path[0]
    from numaserve.server.cli.main import main

    main()
