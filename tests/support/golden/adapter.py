"""All of the golden record that knows the insides of the packages under test. A refactor edits this file alone.

Ranks are threads of this process: each has its own ring mapping, model and Program, and a native call holds no lock.
"""

import dataclasses
import re
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numaserve.kernels import Team, _native
from numaserve.shm_comm import Ring
from numaserve.shm_comm.segment import Segment, create_segment
from numaserve.workers.errors import OperatorError
from numaserve.workers.layers.partition import Partition, RankPart
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning import deployment as planning
from numaserve.workers.planning.roofline.ranks import rank_operations
from numaserve.workers.process.model import RankModel
from numaserve.workers.process.node import NodeContext
from numaserve.workers.program.cost import StepWork
from numaserve.workers.protocol import Launch, SamplingParams, SeqPlan, SeqResult, SlotInit, StepPlan, TokenLogprobs
from numaserve.workers.settings import ModelSettings, WeightFormats

from tests.support.golden.cases import Serving
from tests.support.golden.program_text import program_lines

Refused = OperatorError  # what a checkpoint that cannot be served so is answered with
_CONTEXT, _PAGES, _SLOTS, _STEP_TOKENS, _LOGIT_ROWS = 512, 64, 4, 512, 64
_PATIENCE_S = 120.0
_SLOT_BYTES = 1 << 20  # for the widest of the models
# A decode, a batch of them, a prefill, and a chunk with a decode beside it, without a row of logits of its own.
_STEPS = (
    StepWork([(100, 1)], 1),
    StepWork([(17, 1), (300, 1), (499, 1), (5, 1)], 4),
    StepWork([(0, 300)], 1),
    StepWork([(64, 256), (400, 1)], 1),
)


@dataclass(frozen=True)
class Found:
    """Everything that a checkpoint came to, in words; `nodes`, `packed` and `arena` by rank."""

    nodes: list[list[str]]
    arena: list[int]
    packed: list[list[str]]
    planned: list[str]
    operations: list[list[str]]
    answers: list[str]


def isa() -> str:
    """The instruction set in use."""
    return _native.isa()


def look(model: Path, serving: Serving) -> Found:
    """Load the checkpoint on all ranks and run some prompts. Raises `Refused` for what cannot be served."""
    config = load_model_config(model)
    settings = ModelSettings(
        formats=WeightFormats(serving.linear, serving.lm_head, serving.activations),
        kv_cache_dtype=serving.kv_dtype,
        expert_parallel=serving.expert_parallel,
        context_parallel_from=serving.context_parallel_from,
    )
    partition = config.partition(serving.shares, settings)
    planned = _planned(_options(settings), config, partition)
    operations = [_operations(config, part) for part in partition.ranks]
    with _segment(serving.world) as segment, ThreadPoolExecutor(serving.world) as threads:
        launches = [_launch(model, settings, serving, rank, segment) for rank in range(serving.world)]
        ranks = list(threads.map(_run, launches))
    nodes, arena, packed, answers = zip(*ranks, strict=True)
    return Found(list(nodes), list(arena), list(packed), planned, operations, answers[0])


def _launch(model: Path, settings: ModelSettings, serving: Serving, rank: int, segment: Segment | None) -> Launch:
    return Launch(
        rank=rank,
        world_size=serving.world,
        model=str(model),
        cpus=[[-1]] * serving.world,
        nodes=[0] * serving.world,
        weights=list(serving.shares),
        num_pages=_PAGES,
        context_length=_CONTEXT,
        max_running_requests=_SLOTS,
        max_step_tokens=_STEP_TOKENS,
        max_logit_rows=_LOGIT_ROWS,
        ring_fd=segment.fd if segment else -1,
        ring_nonce=segment.nonce if segment else 0,
        step_deadline_s=_PATIENCE_S,
        settings=settings,
    )


@contextmanager
def _segment(world: int) -> Iterator[Segment | None]:
    if world == 1:
        yield None
        return
    with create_segment(world, 1, _SLOT_BYTES) as segment:
        yield segment


def _run(launch: Launch) -> tuple[list[str], int, list[str], list[str]]:
    """One rank: its nodes, bytes of arena, packed matrices, and answers, which rank 0 alone has."""
    ring = None
    if launch.world_size > 1:
        ring = Ring(launch.ring_fd, launch.rank, launch.ring_nonce, launch.world_size)
        ring.set_deadline(launch.step_deadline_s)
    try:
        rank = RankModel(launch, NodeContext(0, Team(launch.cpus[launch.rank]), ring), lambda done, total: None)
        description = rank._program.describe()
        packed = [_matrix_line(matrix) for matrix in rank._weights.matrices]
        answers = [_answer_line(result) for plan in _plans() for result in rank.run(plan).seqs if launch.rank == 0]
    except BaseException as error:
        if ring is not None:
            ring.abort(str(error))
        raise
    return _named_as_recorded(program_lines(description)), description["arena_bytes"], packed, answers


def _matrix_line(matrix: _native.PackedMatrix) -> str:
    digest = sha256(matrix.buffer()).hexdigest()[:16]
    return f"{matrix.n} x {matrix.k} {matrix.format}/{matrix.group} {matrix.offsets} {matrix.nbytes} {digest}"


def _plans() -> list[StepPlan]:
    """Prompts in one chunk and in two, with log-probabilities of their own tokens, sampled and not; steps of decode, of
    which some are of a sequence that ranks divide."""
    random = np.random.RandomState(0)
    short, long, late = (random.randint(3, 490, count).tolist() for count in (37, 300, 5))
    greedy = SlotInit(SamplingParams(temperature=0.0, logprobs=5))
    sampled = SlotInit(
        SamplingParams(temperature=0.9, top_p=0.9, seed=1, logprobs=3, repetition_penalty=1.2), prompt_history=late
    )
    pages = [list(range(16)), list(range(16, 32)), list(range(32, 48))]
    begin = SeqPlan(0, 0, short, pages=pages[0], init=greedy, sample=True, prompt_logprobs=short[1:])
    steps = [
        [begin, SeqPlan(1, 0, long[:290], pages=pages[1], init=greedy)],
        [_decode(0, 37), SeqPlan(1, 290, long[290:], sample=True)],
        [_decode(0, 38), _decode(1, 300), SeqPlan(2, 0, late, pages=pages[2], init=sampled, sample=True)],
        [_decode(2, 5), _decode(0, 39), _decode(1, 301)],
        [_decode(1, 302), _decode(2, 6)],
    ]
    return [StepPlan(index, seqs) for index, seqs in enumerate(steps)]


def _decode(slot: int, position: int) -> SeqPlan:
    return SeqPlan(slot, position, [], from_previous=True, sample=True)


def _answer_line(result: SeqResult) -> str:
    if result.nan:
        raise AssertionError("logits that are not numbers tell nothing: mend the checkpoint")
    told = [] if result.logprobs is None else [result.logprobs]
    return " ".join([str(result.token), *(_logprob_words(each) for each in [*told, *result.prompt_logprobs])])


def _logprob_words(logprobs: TokenLogprobs) -> str:
    bits = struct.pack(f"<{1 + len(logprobs.top_logprobs)}d", logprobs.logprob, *logprobs.top_logprobs).hex()
    return f"{logprobs.token}:{logprobs.top_ids}:{bits}"


def _options(settings: ModelSettings) -> planning.DeploymentOptions:
    return planning.DeploymentOptions(
        model="",
        max_running_requests=_SLOTS,
        max_step_tokens=_STEP_TOKENS,
        mem_fraction_static=0.9,
        step_deadline_s=1.0,
        settings=settings,
    )


def _planned(options: planning.DeploymentOptions, config: ModelConfig, partition: Partition) -> list[str]:
    needs = planning.rank_needs(options, config, partition)
    slot = planning._ring_slot_bytes(options, config, partition)
    lines = [f"{name} {getattr(needs, name)}" for name in ("weights", "scratch", "per_page")]
    return [*lines, f"ring slot {slot}"]


def _operations(config: ModelConfig, part: RankPart) -> list[str]:
    counted = rank_operations(config, part)
    return _named_as_recorded(
        f"{each.name} {each.kind} {each.weights} {each.computes} "
        + " ".join(repr(dataclasses.astuple(each.amount(step))) for step in _STEPS)
        for each in counted
    )


def _named_as_recorded(lines: Iterable[str]) -> list[str]:
    return [re.sub(r"\blatent_(store|absorb|values)\b", r"mla_\1", line) for line in lines]
