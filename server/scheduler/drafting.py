"""The speculation of a scheduler."""

from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.scheduler.step_costs import StepCosts
from numaserve.server.speculation.drafter import Drafters
from numaserve.server.speculation.speculation import Speculation
from numaserve.server.speculation.worker_drafts import WorkerDrafts
from numaserve.workers.interface.drafters import WORKER_DRAFTERS


def make_speculation(config: SchedulerConfig, costs: StepCosts, drafters: Drafters) -> Speculation:
    """Return the speculation with `drafters` of the front end, and with the workers' drafter if there is one."""
    workers = None
    if config.worker_drafter is not None and costs.draft_model is not None:
        workers = WorkerDrafts(
            WORKER_DRAFTERS[config.worker_drafter],
            costs.draft_model,
            page_size=config.page_size,
            shares_pages=config.enable_prefix_cache,
        )
    return Speculation(
        drafters,
        costs.served,
        workers,
        vocab_size=config.vocab_size,
        placeholder=config.placeholder,
        max_drafts=config.max_drafts,
    )
