"""``python -m numaserve.kernels``: prints the instruction set in use, for a process that does not load the kernels.

Exits with status 1, and a line that says why on standard error, where there is none.
"""

import sys

from numaserve.kernels import isa

try:
    print(isa())
except (ValueError, RuntimeError) as error:
    sys.exit(str(error))
