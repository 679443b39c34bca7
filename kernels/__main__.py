"""``python -m numaserve.kernels``: prints the instruction set in use, for a process that does not load the kernels.

A second line names the best instruction set of the processor, if this build lacks it, and a third one has the digest of
the native module. Exits with status 1, and a line that says why on standard error, where there is no instruction set.
"""

import sys

from numaserve.kernels import isa, unbuilt_isa
from numaserve.kernels.build import build_digest

try:
    print(isa(), unbuilt_isa(), build_digest(), sep="\n")
except (ValueError, RuntimeError) as error:
    sys.exit(str(error))
