"""Prompt tokens that sessions find in the cache of a model with states or windows, compared with pure attention.

    python -m tests.bench.bench_sessions [--snapshots 96 | --window 128 [--window-pages 1700]] [--sessions 64]

The scheduler is the product's, the workers are a clock: a step takes a time for itself and for each token. A snapshot
is as large as that of Qwen3.6-35B-A3B. The window is that of gpt-oss (128 tokens) or of Gemma 3 (1024).
"""

import argparse
import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence
from numaserve.workers.interface.protocol import SamplingParams, SeqResult, StepPlan, StepResult
from numaserve.workers.interface.windows import Window, WindowTable
from numaserve.workers.planning.windows import table_pages

from tests.support.machines import OPTIONS
from tests.support.plan_limits import plan_limits
from tests.support.sequences import sequence

STATE_MIB = 62.8
STEP_TOKENS = 1024
SYSTEM_TOKENS = 8000  # a system prompt with 40 tools
TURNS = 10
STEP_S, TOKEN_S = 0.02, 0.0005
VOCABULARY = 100_000
THINKING = 0.7  # of an output
GENERATION_PROMPT = [11, 12, 13, 14, 15]  # "assistant", and the beginning of its reasoning
NO_REASONING = [11, 12, 13, 16]  # the same in the history of a template that strips reasoning
END_OF_TURN = [17, 18]


@dataclass(frozen=True)
class Load:
    """The sessions of a run."""

    turn_tokens: int  # of the user and of the model together
    strips: bool  # the template leaves reasoning out of the history
    poisson: bool  # sessions begin, and their turns follow, at random times; otherwise all at once
    sessions: int = 64

    def __str__(self) -> str:
        template = "reasoning stripped" if self.strips else "reasoning kept"
        return f"{self.turn_tokens} tokens a turn, {template}, {'Poisson' if self.poisson else 'all at once'}"


@dataclass(eq=False)
class Session:
    """A conversation."""

    load: Load
    rng: random.Random
    history: list[int] = field(default_factory=list)
    turns: int = 0

    def next_turn(self, number: int) -> Sequence:
        """The sequence of the next turn."""
        user = self.load.turn_tokens * 2 // 5
        self.history += [*random_tokens(self.rng, user), *END_OF_TURN]
        self.turns += 1
        output = self.load.turn_tokens - user - len(GENERATION_PROMPT) - 2 * len(END_OF_TURN)
        return sequence(str(number), self.history + GENERATION_PROMPT, SamplingParams(), output)

    def ended(self, seq: Sequence) -> None:
        """Take the answer into the history."""
        output = seq.output
        if self.load.strips:
            self.history += NO_REASONING + output[int(THINKING * len(output)) :] + END_OF_TURN
        else:
            self.history += GENERATION_PROMPT + output + END_OF_TURN


@dataclass(frozen=True)
class Found:
    """Prompt tokens of a run."""

    asked: int
    cached: int


def run(load: Load, snapshots: int = 0, windows: tuple[WindowTable, ...] = ()) -> Found:
    """Run all sessions to their ends. Without snapshots and windows every page can be reused: pure attention."""
    rng = random.Random(7)
    scheduler = Scheduler(
        plan_limits(
            num_pages=16_384,
            context_length=32_768,
            max_slots=load.sessions,
            max_step_tokens=STEP_TOKENS,
            num_snapshots=snapshots,
            window_tables=windows,
        )
    )
    system = random_tokens(rng, SYSTEM_TOKENS)
    sessions = [Session(load, random.Random(seed), list(system)) for seed in range(load.sessions)]
    arrivals = [(at, number, each) for number, (at, each) in enumerate(zip(_times(load, rng), sessions, strict=False))]
    running: dict[str, Session] = {}
    asked = cached = 0
    now, number = 0.0, len(arrivals)
    while arrivals or running:
        while arrivals and (arrivals[0][0] <= now or not running):
            at, _, session = heapq.heappop(arrivals)
            now = max(now, at)
            number += 1
            running[str(number)] = session
            scheduler.add(session.next_turn(number))
        plan = scheduler.schedule()
        assert plan is not None
        now += STEP_S + TOKEN_S * sum(seq.num_tokens for seq in plan.seqs)
        for update in scheduler.apply(answer(plan, rng)):
            if update.finished:
                seq, session = update.sequence, running.pop(update.sequence.request_id)
                asked += seq.prompt_len
                cached += seq.cached_tokens or 0
                session.ended(seq)
                if session.turns < TURNS:
                    number += 1
                    pause = rng.expovariate(1 / 20.0) if load.poisson else 0.0
                    heapq.heappush(arrivals, (now + pause, number, session))
    return Found(asked, cached)


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, VOCABULARY) for _ in range(count)]


def _times(load: Load, rng: random.Random) -> Iterator[float]:
    at = 0.0
    for _ in range(load.sessions):
        yield at
        at += rng.expovariate(1 / 2.0) if load.poisson else 0.0


def answer(plan: StepPlan, rng: random.Random) -> StepResult:
    seqs = [SeqResult(rng.randrange(100, VOCABULARY) if seq.sample else -1) for seq in plan.seqs]
    return StepResult(plan.step_id, 0, seqs, 0, 0, 0)


LOADS = [Load(*each) for each in product((110, 210), (True, False), (False, True))]


def planned(window: int, sessions: int) -> WindowTable:
    """Return the table of a window as it is planned for as many sequences: each has an anchor besides its own pages."""
    options = replace(OPTIONS, max_running_requests=sessions, max_step_tokens=STEP_TOKENS)
    return WindowTable(Window(window), table_pages(options, Window(window), sessions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshots", type=int, default=96)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--window-pages", type=int, default=0)
    parser.add_argument("--sessions", type=int, default=64)
    arguments = parser.parse_args()
    snapshots, windows = arguments.snapshots, ()
    if arguments.window:
        table = planned(arguments.window, arguments.sessions)
        snapshots, windows = 0, (table._replace(num_pages=arguments.window_pages or table.num_pages),)
        print(f"a window of {arguments.window} tokens, {windows[0].num_pages} window pages")
    else:
        print(f"{snapshots} snapshots: {snapshots * STATE_MIB / 1024:.1f} GiB")
    for load in [Load(each.turn_tokens, each.strips, each.poisson, arguments.sessions) for each in LOADS]:
        pure, own = run(load), run(load, snapshots, windows)
        computed = f"{own.asked - own.cached:,} tokens computed instead of {pure.asked - pure.cached:,}"
        print(f"{load}: {own.cached / pure.cached:.2%} of what pages alone find, {computed}")


if __name__ == "__main__":
    main()
