"""What a seed makes of a run: the server's limits, what goes wrong, who asks for what."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from numaserve.server.scheduler.client import EVERYBODY, Client
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.interface.drafters import MAX_DRAFTS
from numaserve.workers.interface.windows import PageLayout, Window, WindowTable

from tests.simulation.tiles import with_tiles
from tests.simulation.truth import EOS, FIRST, NAN, PAGE_SIZE, VOCABULARY, Truth, Wanted
from tests.support.plan_limits import plan_limits

# What the workers may do to a step. Each scenario has a few of them: all at once would hide each other.
_CRASHES = ("die", "die_quietly", "die_talking", "hang", "mute")
_ODD_ANSWERS = ("slow", "fail", "mismatch", "misshapen", "unasked", "twice")
STEP_FAULTS = _CRASHES + _ODD_ANSWERS
_WINDOWS = (Window(9), Window(12, aligned=True))
Ending = Literal["wait", "drain", "stop", "hurry"]


@dataclass(frozen=True)
class Request:
    """What one client does."""

    at: float  # when it comes, in seconds
    kind: Literal["generate", "profile", "flush", "load", "unload"] = "generate"
    sequences: tuple[Wanted, ...] = ()
    pace_s: float = 0.0  # between two chunks that it reads
    timeout_s: float | None = None  # that it gives each sequence
    client: Client = EVERYBODY
    priority: int = 0
    leaves_after_chunks: int = -1
    leaves_after_s: float = -1.0
    adapter: str = ""  # to load or unload
    replaces: bool = False


@dataclass(frozen=True)
class HostAbsence:
    """A time in which the host of a stage is dead, or silent."""

    at: float
    seconds: float
    stage: int
    silently: bool  # its connections stay, and what it was sent arrives when it is back


@dataclass(frozen=True)
class Scenario:
    """One run."""

    ranks: int
    stages: int  # of the pipeline; a plan is run by all of them
    hosts: bool  # each stage is on a host of its own, with an agent
    host_absences: tuple[HostAbsence, ...]
    overlap: bool
    pages: int
    context: int
    running: int
    queued: int
    queued_s: float
    step_tokens: int
    logit_rows: int
    prefix_cache: bool
    snapshots: int  # 0: the model has no recurrent states
    windows: tuple[Window, ...]  # with page tables of their own
    block_pages: int
    spare_window_pages: int  # more than the running sequences may need
    feature_tiles: int  # 0: the model reads no images
    rows_per_tile: int
    adapters: int  # that have memory; 0: requests name none
    refused_adapters: float  # the probability that a rank cannot load one
    disk_slots: int  # records of the disk tier; 0: there is none
    disk_s: float  # what a transfer takes, on average
    disk_bytes_per_s: float  # as measured at the start
    disk_faults: float  # the probability that a transfer has a problem
    disk_hangs: float  # the probability that it does not end
    keys_removed_at: float  # but for those without a cache group of their own; -1: never
    run_s: float  # what a run of the tower takes
    tower_parts: tuple[float, ...]  # the share of each of its parts
    right_drafts: float  # the probability of each draft token to be right; 0: nothing is drafted
    worker_drafter: str | None  # what drafts in the workers, rightly with that probability, or half of it
    step_s: float  # what a step takes, on average
    token_s: float  # and each token of it besides
    target_itl_s: float | None
    load_s: float
    step_deadline_s: float
    mask_grace_s: float
    resume_timeout_s: float
    most_failures: int  # before the supervisor gives up
    step_faults: Mapping[str, float]  # the probability of each, in a step
    late_steps: float  # the probability that a step takes longer than its deadline, though nothing is wrong with it
    load_faults: float
    deaths: tuple[float, ...]  # times at which a worker dies, whatever it does
    absences: tuple[tuple[float, float], ...]  # of the front end: when, and for how many seconds
    late_matchers: float  # the probability that a mask comes too late
    faults_end: float
    ending: Ending
    ends_at: float
    requests: tuple[Request, ...] = field(repr=False)

    @property
    def limits(self) -> SchedulerConfig:
        """The limits of plans: few draft tokens where window tables have pages for all, and pages for the windows of
        all running sequences."""
        max_drafts, layout = 2 if self.windows else MAX_DRAFTS, PageLayout(PAGE_SIZE, self.block_pages)
        running = min(self.running, self.step_tokens, self.logit_rows)
        pages = [each.least_pages(running, self.step_tokens, max_drafts, layout) for each in self.windows]
        return plan_limits(
            num_pages=self.pages,
            context_length=self.context,
            max_slots=self.running,
            max_step_tokens=self.step_tokens,
            max_logit_rows=self.logit_rows,
            enable_prefix_cache=self.prefix_cache,
            worker_drafter=self.worker_drafter,
            page_size=PAGE_SIZE,
            num_snapshots=self.snapshots,
            feature_tiles=self.feature_tiles,
            rows_per_tile=self.rows_per_tile,
            window_tables=tuple(
                WindowTable(window, least + self.spare_window_pages)
                for window, least in zip(self.windows, pages, strict=True)
            ),
            block_pages=self.block_pages,
            max_drafts=max_drafts,
            tokens_between_marks=3 * PAGE_SIZE,
            target_itl_s=self.target_itl_s,
            kv_disk=self.prefix_cache and self.disk_slots > 0,
            stages=self.stages,
        )

    @property
    def most_in_flight(self) -> int:
        """Plans in flight at a time."""
        return self.limits.max_in_flight if self.overlap else 1


def scenario_of(rng: random.Random) -> Scenario:
    """Draw a scenario."""
    scenario = _with_hosts(_with_stages(_with_disk(_with_few_window_pages(_any_scenario(rng)))))
    return _with_one_poison(rng, scenario) if rng.random() < 0.1 else scenario


def _with_few_window_pages(scenario: Scenario) -> Scenario:
    """In half of the scenarios with windows their pages are lacking, and no others."""
    if not scenario.windows or scenario.spare_window_pages:
        return scenario
    return replace(scenario, pages=80, running=min(scenario.running, 2), step_tokens=4)


def _with_disk(scenario: Scenario) -> Scenario:
    """Most servers that cache prefixes keep some on disk, and clients come back to what they have said."""
    rng = random.Random(f"disk {scenario.requests[0].at}")  # of its own, as what is drafted
    slots = rng.choice((0, 0, 3, 12, 100))
    if not (scenario.prefix_cache and slots):
        return scenario
    requests, longest = scenario.requests, min(scenario.context, scenario.pages * PAGE_SIZE)
    for _ in range(3):
        requests += _later_turns(rng, requests, longest)
    faulty, last = rng.random() < 0.8, max(request.at for request in scenario.requests)
    return replace(
        scenario,
        disk_slots=slots,
        disk_s=rng.choice((0.001, 0.02, 0.5, 4.0)),
        disk_bytes_per_s=rng.choice((1e5, 1e6, 1e9)),
        disk_faults=rng.choice((0.0, 0.1, 0.5)) if faulty else 0.0,
        disk_hangs=rng.choice((0.0, 0.0, 0.1)) if faulty else 0.0,
        keys_removed_at=rng.choice((-1.0, -1.0, last / 2, last)),
        requests=requests,
    )


def _with_stages(scenario: Scenario) -> Scenario:
    """Some models of text alone are divided into stages, which have neither states nor windows nor drafters, and no
    disk tier."""
    rng = random.Random(f"stages {scenario.requests[0].at}")  # of its own, as what is drafted
    stages = rng.choice((1, 1, 1, 2, 3))
    if stages == 1 or scenario.feature_tiles or scenario.adapters:
        return scenario
    return replace(scenario, stages=stages, snapshots=0, windows=(), disk_slots=0, worker_drafter=None)


def _with_hosts(scenario: Scenario) -> Scenario:
    """Most models in stages are on several hosts, which go away and come back."""
    rng = random.Random(f"hosts {scenario.requests[0].at}")  # of its own, as what is drafted
    if scenario.stages == 1 or rng.random() < 0.3:
        return scenario
    last = max(request.at for request in scenario.requests)
    absences = tuple(
        HostAbsence(
            rng.uniform(0, rng.choice((last, 2 * last + 10))),  # the last clients may have gone by then
            rng.choice((0.2, 1.0, 8.0, 30.0)),
            rng.randrange(scenario.stages),
            silently=rng.random() < 0.5,
        )
        for _ in range(rng.choice((0, 2, 4)))
    )
    return replace(scenario, hosts=True, host_absences=absences, ranks=scenario.stages * rng.choice((1, 1, 2)))


def _with_one_poison(rng: random.Random, scenario: Scenario) -> Scenario:
    """Nothing goes wrong but by one request, which is computed beside as many others as can be."""
    kinds = ["poison"] + ["plain", "echo"] * 6
    at = 2 * scenario.load_s
    requests = tuple(_request(rng, kind, [(FIRST,)], 24, at) for kind in kinds)
    if scenario.feature_tiles:
        imaged = random.Random(f"images of {scenario.requests[0].at}")
        requests = tuple(_with_images(imaged, each, scenario.rows_per_tile, 24) for each in requests)
    poison, *others = requests
    killer = replace(
        poison, sequences=(replace(poison.sequences[0], poison=True),), leaves_after_s=-1.0, timeout_s=None
    )
    return replace(
        scenario,
        pages=80,
        running=rng.choice((6, 12)),
        queued=64,
        queued_s=600.0,
        step_tokens=32,
        logit_rows=64,
        resume_timeout_s=300.0,
        step_faults={},
        load_faults=0.0,
        deaths=(),
        host_absences=(),
        ending="wait",
        requests=(*others, killer),
    )


def _any_scenario(rng: random.Random) -> Scenario:
    faulty = rng.random() < 0.8
    kinds = rng.sample(STEP_FAULTS, rng.randint(0, 3)) if faulty else []
    pages = rng.choice((6, 8, 12, 40))
    context = rng.choice((24, 40))
    until = rng.choice((0.05, 0.5, 3.0))
    load_s = rng.choice((0.0, 0.3, 2.0))
    until += load_s
    longest = min(context, pages * PAGE_SIZE)
    requests = _requests(rng, longest, load_s, until)
    imaged = random.Random(f"images {requests[0].at}")
    feature_tiles, rows_per_tile = imaged.choice((0, 0, 0, 0, 0, 0, 1, 2, 5)), imaged.choice((1, 2, 3, 6))
    if feature_tiles:
        requests = tuple(_with_images(imaged, each, rows_per_tile, longest) for each in requests)
    stateful = random.Random(5 * until)  # of its own, as what the requests are
    snapshots = stateful.choice((0, 0, 0, 4, 1, 6))
    windowed = random.Random(f"windows {requests[0].at}")
    windows = windowed.choice(((), (), (), (), _WINDOWS[:1], _WINDOWS[1:], _WINDOWS))
    if snapshots or windows:
        requests += _later_turns(stateful if snapshots else windowed, requests, longest)
    adapted = random.Random(f"adapters {requests[0].at}")
    adapters = adapted.choice((0, 0, 0, 0, 1, 2))
    if adapters:
        requests = tuple(_with_adapters(adapted, each) for each in requests) + _loads(adapted, load_s, until)
    deaths = rng.choice((0, 0, 1, 3)) if faulty else 0
    away = random.Random(3 * until)  # of its own, as what the front end is spared
    return Scenario(
        ranks=rng.choice((1, 2, 2, 3)),
        stages=1,
        hosts=False,
        host_absences=(),
        overlap=rng.random() < 0.75,
        pages=pages,
        context=context,
        running=rng.choice((1, 2, 4, 6)),
        queued=rng.choice((2, 8, 64)),
        queued_s=rng.choice((0.1, 600.0, 600.0)),
        step_tokens=rng.choice((4, 8, 16, 32)),
        logit_rows=rng.choice((2, 6, 16, 64)),
        prefix_cache=rng.random() < 0.8,
        snapshots=snapshots,
        windows=windows,
        block_pages=windowed.choice((1, 2)),
        spare_window_pages=windowed.choice((0, 4)),
        feature_tiles=feature_tiles,
        rows_per_tile=rows_per_tile,
        adapters=adapters,
        refused_adapters=adapted.choice((0.0, 0.2)) if faulty else 0.0,
        disk_slots=0,
        disk_s=0.0,
        disk_bytes_per_s=0.0,
        disk_faults=0.0,
        disk_hangs=0.0,
        keys_removed_at=-1.0,
        run_s=imaged.choice((0.0, 0.01, 0.1, 0.5)),
        tower_parts=imaged.choice(((1.0,), (0.5, 0.25, 0.25), (0.125,) * 8)),
        right_drafts=random.Random(until).choice((0.0, 0.0, 0.6, 0.95)),  # of its own, as of whom a request is
        worker_drafter=random.Random(-until).choices((None, "draft_model", "mtp"), (5, 1, 1))[0],
        step_s=rng.choice((0.005, 0.02, 0.1)),
        token_s=rng.choice((0.0, 0.001, 0.01)),
        target_itl_s=rng.choice((None, 0.02, 0.2)),
        load_s=load_s,
        step_deadline_s=5.0,
        mask_grace_s=0.5,
        resume_timeout_s=rng.choice((1.0, 20.0, 300.0)),
        most_failures=rng.choice((1, 3, 1000, 1000)),
        step_faults={kind: rng.choice((0.01, 0.05, 0.2)) for kind in kinds},
        late_steps=random.Random(f"late {until}").choice((0.0, 0.0, 0.0, 0.1)),  # of its own, as what is drafted
        load_faults=rng.choice((0.0, 0.0, 0.0, 0.3)) if faulty else 0.0,
        deaths=tuple(sorted(rng.uniform(load_s / 2, 2 * until) for _ in range(deaths))),
        absences=tuple(
            (away.uniform(0, 2 * until), away.choice((0.6, 2.0, 8.0, 60.0))) for _ in range(away.choice((0, 0, 1, 3)))
        ),
        late_matchers=rng.choice((0.0, 0.1, 0.3)) if faulty else 0.0,
        faults_end=until * rng.choice((0.7, 1.5)) + 1.0,
        ending=rng.choice(("wait", "wait", "wait", "wait", "drain", "stop", "hurry")),
        ends_at=rng.uniform(0, 2 * until),
        requests=requests,
    )


def _requests(rng: random.Random, longest: int, begin: float, until: float) -> tuple[Request, ...]:
    shared = [tuple(rng.randrange(FIRST, VOCABULARY) for _ in range(rng.randint(4, 12))) for _ in range(2)]
    weights = {kind: rng.choice((0, 1, 4)) for kind in _KINDS} | {"plain": 2}
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.choice((1, 4, 10, 16)))
    return tuple(_request(rng, kind, shared, longest, rng.uniform(begin, until)) for kind in kinds)


def _later_turns(rng: random.Random, requests: tuple[Request, ...], longest: int) -> tuple[Request, ...]:
    """Requests that go on where the answer to another one ends, or shortly before."""
    turns: list[Request] = []
    for request in rng.choices(requests, k=6):
        for wanted in request.sequences[:1]:
            truth = Truth(wanted, longest, request.client.cache_group)
            until = rng.randint(truth.prompt_len // 2, len(truth.tokens))
            prompt = [*truth.tokens[:until], *(rng.randrange(FIRST, VOCABULARY) for _ in range(rng.randint(1, 4)))]
            prompt = prompt[: longest - 1]
            tiles = tuple(each for each in wanted.tiles if each.start + each.rows <= min(until, len(prompt)))
            turn = Wanted(rng.getrandbits(40), tuple(prompt), rng.randint(1, 12), salt=wanted.salt, tiles=tiles)
            turns.append(Request(request.at + rng.expovariate(1.0), sequences=(turn,), client=request.client))
    return tuple(turns)


def _with_images(rng: random.Random, request: Request, rows: int, longest: int) -> Request:
    return replace(request, sequences=tuple(with_tiles(rng, each, rows, longest) for each in request.sequences))


def _with_adapters(rng: random.Random, request: Request) -> Request:
    names = [rng.choice(("", "x", "x", "y")) for _ in request.sequences]
    sequences = zip(request.sequences, names, strict=True)
    return replace(request, sequences=tuple(replace(each, adapter=name) for each, name in sequences))


def _loads(rng: random.Random, begin: float, until: float) -> tuple[Request, ...]:
    """Clients that load and unload two adapters, mostly one after the other."""
    return tuple(
        Request(
            rng.uniform(0.7 * begin, until),
            rng.choice(("load", "load", "unload")),
            adapter=rng.choice(("x", "x", "y")),
            replaces=rng.random() < 0.7,
            leaves_after_s=rng.choice((-1.0, -1.0, 0.01)),
        )
        for _ in range(rng.choice((3, 8, 16)))
    )


_KINDS = ("plain", "several", "stops", "echo", "pool", "masked", "nan", "too_long", "poison", "other")


def _request(rng: random.Random, kind: str, shared: list[tuple[int, ...]], longest: int, at: float) -> Request:
    if kind == "other":
        return Request(at, rng.choice(("profile", "flush")))
    count = rng.randint(2, 3) if kind == "several" else 1
    sequences = tuple(_wanted(rng, kind, shared, longest) for _ in range(count))
    leaves = rng.random()
    whose = random.Random(at)  # of its own: what else the seed makes stays as it was without clients
    return Request(
        at,
        sequences=sequences,
        pace_s=rng.choice((0.0, 0.0, 0.2)),
        timeout_s=rng.expovariate(1.0) if rng.random() < 0.1 else None,
        leaves_after_chunks=rng.randint(0, 5) if leaves < 0.1 else -1,
        leaves_after_s=rng.expovariate(2.0) if 0.1 <= leaves < 0.25 else -1.0,
        client=Client(
            whose.choice(("", "", "a", "b")), whose.choice((0.5, 1.0, 2.0)), whose.choice(("", "", "", "team"))
        ),
        priority=whose.choice((0, 0, -2, 1)),
    )


def _wanted(rng: random.Random, kind: str, shared: list[tuple[int, ...]], longest: int) -> Wanted:
    prompt = _prompt(rng, kind, shared, longest)
    room = max(1, longest - len(prompt))
    fields: dict[str, object] = {"max_new_tokens": rng.randint(1, min(room + 2, 16))}
    if rng.random() < 0.3:
        fields |= {"logprobs": rng.randint(0, 2), "named": (FIRST, FIRST + 1)}
    if kind != "pool" and rng.random() < 0.5:
        fields["stop_token_ids"] = frozenset({EOS, rng.randrange(FIRST, VOCABULARY)})
    match kind:
        case "stops":
            letters = [chr(97 + rng.randrange(26)) for _ in range(6)]
            fields |= {"stop": (letters[0], "".join(letters[1:3]), "".join(letters[3:]) + "é")}
            fields |= {"stop_token_ids": frozenset({EOS}), "include_stop": rng.random() < 0.5}
            fields["min_new_tokens"] = rng.choice((0, 0, 3))
        case "echo":
            fields |= {"prompt_logprobs": True, "max_new_tokens": rng.choice((0, 4))}
        case "pool":
            fields = {"max_new_tokens": 0, "pool": True}
        case "masked":
            step = rng.randint(0, 6) if rng.random() < 0.4 else -1
            fields |= {"masked": True, "mask_fault": (step, rng.choice(("free", "empty", "failed", "broken")))}
        case "poison":
            fields["poison"] = rng.random() < 0.5
    return Wanted(
        seed=rng.getrandbits(40),
        prompt=prompt,
        salt=rng.choice((0, 0, 0, 1)),
        penalties=rng.random() < 0.3,
        **fields,  # type: ignore[arg-type]
    )


def _prompt(rng: random.Random, kind: str, shared: list[tuple[int, ...]], longest: int) -> tuple[int, ...]:
    if kind == "too_long":
        return (FIRST,) * (longest + rng.randint(0, 2))
    own = [rng.randrange(FIRST, VOCABULARY) for _ in range(rng.choice((1, 2, 5, 12)))]
    prompt = [*(rng.choice(shared) if rng.random() < 0.5 else ()), *own][: longest - 1]
    if kind == "nan":
        prompt[rng.randrange(len(prompt))] = NAN
    return tuple(prompt)
