"""The last import of the process that forks workers, see `rank_process`: families that workers would import one by one,
and what is there by then is left out of all garbage collections, which would copy it in each worker."""

import gc

from numaserve.workers.models import registry

from tests.support import newcomer

newcomer.register()
registry.families()
gc.freeze()
