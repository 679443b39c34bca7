"""``python -m numaserve.kernels``: prints the instruction set in use, for a process that does not load the kernels.

A second line names the best instruction set of the processor, if this build lacks it. Exits with status 1, and a line
that says why on standard error, where there is no instruction set.
"""

import sys

from numaserve.kernels import isa, unbuilt_isa

try:
    print(isa(), unbuilt_isa(), sep="\n")
except (ValueError, RuntimeError) as error:
    sys.exit(str(error))
