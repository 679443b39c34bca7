"""The engine over real workers, without the HTTP server before it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from msgspec import structs
from numaserve.server.config.option_types import DrafterName
from numaserve.server.engine.config import EngineConfig
from numaserve.server.engine.engine import Engine
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.speculation.drafter import Drafters
from numaserve.server.speculation.server_drafters import ServerDrafters
from numaserve.server.supervisor.group import GroupSpec
from numaserve.server.supervisor.supervisor import Supervisor
from numaserve.shm_comm.mask_board import create_mask_board
from numaserve.shm_comm.segment import create_segment
from numaserve.workers.interface.protocol import Launch, mask_rows
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, Backend, ModelSettings
from numaserve.workers.models.load import load_model_config

from tests.support.byte_tokenizer import ByteTokenizer

_PATIENCE_S = 240.0


@asynccontextmanager
async def real_engine(
    model: Path,
    tp: int = 1,
    *,
    limits: SchedulerConfig,
    step_tokens: int | None = None,
    overlap: bool = True,
    threads: int = 1,
    mask_grace_s: float = _PATIENCE_S / 2,
    mask_patience_s: float = _PATIENCE_S,
    backend: Backend = "native",
    settings: ModelSettings = DEFAULT_SETTINGS,
    metrics: Metrics | None = None,
    drafters: Drafters | None = None,
    speculative: tuple[DrafterName, ...] = (),
) -> AsyncIterator[Engine]:
    """A model on `tp` ranks of `threads` unpinned threads each, until the context ends. Its texts mean nothing.

    Steps of the workers have `step_tokens` tokens, otherwise as many as `limits` say.
    Draft tokens are those of the server's drafters that `speculative` names, or of `drafters`.
    """
    config = load_model_config(model)
    step_tokens = step_tokens or limits.shared_step_tokens
    capacity = structs.replace(limits.capacity, max_step_tokens=step_tokens, max_drafts=limits.max_drafts)
    wide = max(step_tokens * (config.hidden_size + 32), capacity.max_logit_rows * (config.vocab_size + 32))
    launches = [
        Launch(
            rank=rank,
            world_size=tp,
            model=str(model),
            cpus=[[-1] * threads] * tp,
            nodes=[0] * tp,
            weights=[threads] * tp,
            capacity=capacity,
            ring_fd=-1,
            ring_nonce=0,
            step_deadline_s=_PATIENCE_S,
            mask_grace_s=mask_grace_s,
            settings=settings,
            backend=backend,
        )
        for rank in range(tp)
    ]
    ring = partial(create_segment, tp, threads, -(-4 * wide // 4096) * 4096)
    board = partial(create_mask_board, mask_rows(capacity.max_slots), config.vocab_size)
    engine = Engine(
        EngineConfig(
            "real",
            "0",
            step_deadline_s=_PATIENCE_S,
            overlap=overlap,
            mask_patience_s=mask_patience_s,
            drafters=speculative,
        ),
        Supervisor(GroupSpec(launches, ring if tp > 1 else None, board_factory=board)),
        Scheduler(limits, drafters=ServerDrafters(speculative) if speculative else drafters),
        ByteTokenizer(),
        metrics or Metrics("real"),
    )
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop(at_once=True)
