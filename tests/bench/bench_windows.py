"""Sequences of long contexts with window tables, compared with one page table and the same memory.

    python -m tests.bench.bench_windows [--pages 8192] [--context 32768]

The first load consists of new prompts with long outputs, the second of conversations without pauses. These find their
earlier turns in the cache as long as it holds all of them.

The scheduler is the product's, the workers are a clock, as in `bench_sessions`: a step takes a time for itself, for
each token, and for each cached token that a sequence attends to. `--pages` is the memory, in pages of all layers.
"""

import argparse
import random
from dataclasses import dataclass
from itertools import count

from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, StepPlan
from numaserve.workers.interface.windows import WindowTable

from tests.bench.bench_sessions import (
    STEP_S,
    STEP_TOKENS,
    SYSTEM_TOKENS,
    TOKEN_S,
    Load,
    Session,
    answer,
    planned,
    random_tokens,
)
from tests.support.plan_limits import plan_limits
from tests.support.sequences import sequence

POSITION_S = 2e-8  # a cached token of a layer that attends to all, as a part of the model's layers
OUTPUT_TOKENS = 4096
SEQUENCES = 48
SLOTS = 64
TURN_TOKENS, TURNS = 600, 3  # of a conversation, after its long beginning


@dataclass(frozen=True)
class Model:
    """The layers of a model, in parts of all."""

    name: str
    window: int
    windowed: float  # layers with a window, by their bytes of a token


MODELS = [Model("gpt-oss", 128, 18 / 36), Model("Gemma 3 27B", 1024, 52 / 62)]


@dataclass(frozen=True)
class Served:
    """Results of a run."""

    pages: int  # of the common page table
    running: float  # sequences on average, in steps
    tokens_s: float  # of output


def make_scheduler(model: Model, pages: int, context: int, *, tables: bool) -> Scheduler:
    """Return a scheduler in the memory of `pages` pages of all layers."""
    windows: tuple[WindowTable, ...] = ()
    if tables:
        windows = (planned(model.window, SLOTS),)
        pages = int((pages - model.windowed * windows[0].num_pages) / (1 - model.windowed))
    limits = {"max_slots": SLOTS, "max_step_tokens": STEP_TOKENS}
    return Scheduler(plan_limits(pages, context, window_tables=windows, **limits))


def run(model: Model, pages: int, context: int, *, tables: bool) -> Served:
    """Serve sequences of `context` tokens."""
    scheduler = make_scheduler(model, pages, context, tables=tables)
    rng = random.Random(7)
    for number in range(SEQUENCES):
        scheduler.add(
            sequence(str(number), random_tokens(rng, context - OUTPUT_TOKENS), SamplingParams(), OUTPUT_TOKENS)
        )
    seconds, steps, running = 0.0, 0, 0
    while (plan := scheduler.schedule()) is not None:
        seconds += _seconds(model, plan)
        steps += 1
        running += len(scheduler.running)
        scheduler.apply(answer(plan, rng))
    return Served(scheduler.config.capacity.num_pages, running / steps, SEQUENCES * OUTPUT_TOKENS / seconds)


def converse(model: Model, pages: int, context: int, sessions: int, *, tables: bool) -> float:
    """Return the output tokens a second of conversations that end at `context` tokens, after all their first turns."""
    scheduler = make_scheduler(model, pages, context, tables=tables)
    rng, numbers = random.Random(7), count()
    system = random_tokens(rng, SYSTEM_TOKENS)
    load = Load(TURN_TOKENS, strips=False, poisson=False, sessions=sessions)
    own = context - SYSTEM_TOKENS - (TURNS + 1) * TURN_TOKENS
    running: dict[str, Session] = {}

    def begin(session: Session) -> None:
        seq = session.next_turn(next(numbers))
        running[seq.request_id] = session
        scheduler.add(seq)

    for each in map(random.Random, range(sessions)):
        begin(Session(load, each, system + random_tokens(each, own)))
    tokens, seconds = 0, 0.0
    while (plan := scheduler.schedule()) is not None:
        if all(session.turns > 1 for session in running.values()):
            seconds += _seconds(model, plan)
            tokens += sum(seq.sample for seq in plan.seqs)
        for update in scheduler.apply(answer(plan, rng)):
            if update.finished:
                session = running.pop(update.sequence.request_id)
                session.ended(update.sequence)
                if session.turns <= TURNS:
                    begin(session)
    return tokens / seconds


def _seconds(model: Model, plan: StepPlan) -> float:
    """Attention costs the same with or without tables: layers with windows never read more than the window."""
    tokens = sum(seq.num_tokens for seq in plan.seqs)
    read = sum((1 - model.windowed) * seq.start + model.windowed * min(seq.start, model.window) for seq in plan.seqs)
    return STEP_S + TOKEN_S * tokens + POSITION_S * read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=8192)
    parser.add_argument("--context", type=int, default=32_768)
    arguments = parser.parse_args()
    for model in MODELS:
        one, own = (run(model, arguments.pages, arguments.context, tables=tables) for tables in (False, True))
        print(
            f"{model.name}: {own.pages} common pages instead of {one.pages},"
            f" {own.running:.1f} sequences running instead of {one.running:.1f} ({own.running / one.running:.2f} x),"
            f" {own.tokens_s:.0f} tokens/s of output instead of {one.tokens_s:.0f}"
            f" ({own.tokens_s / one.tokens_s:.2f} x)"
        )
        for sessions in range(2, min(SLOTS, 3 * arguments.pages * PAGE_SIZE // arguments.context) + 1, 2):
            alone, own_s = (
                converse(model, arguments.pages, arguments.context, sessions, tables=tables) for tables in (False, True)
            )
            print(f"  {sessions} conversations: {own_s:.0f} tokens/s instead of {alone:.0f} ({own_s / alone:.2f} x)")


if __name__ == "__main__":
    main()
