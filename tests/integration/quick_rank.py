"""A rank of a benchmark that measures its ceilings with little memory: `python quick_rank.py`.

To fill and read a buffer that no cache holds takes half a second, before and after each phase.
"""

import sys

from numaserve.workers.bench.rank import main
from numaserve.workers.planning import ceilings

if __name__ == "__main__":
    ceilings.bytes_beyond_caches = lambda: 4 << 20
    sys.exit(main())
