"""A worker without a model: `python fake_worker.py [faults] --rank R --endpoint E --lifeline-fd F`.

It speaks the real protocol and keeps a KV cache whose "keys and values" are the token ids themselves. The next token
is a function of every token that its page table leads to, so a wrong page table, a page given out twice or a stale
page gives other tokens than `expected_tokens`. With --script it plays what a model might have written instead.
"""

import argparse
import os
import signal
import sys
import time
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path

import zmq
from msgspec.structs import replace
from numaserve.shm_comm import Board
from numaserve.workers.interface.protocol import (
    PAGE_SIZE,
    PROTOCOL_VERSION,
    TO_BE_DRAFTED,
    AdapterLoaded,
    Ceilings,
    Failure,
    FromWorker,
    Launch,
    LoadAdapter,
    LoadProgress,
    LoraAdapter,
    OperationProfile,
    OperationTerms,
    ProfileRequest,
    ProtocolError,
    RankProfile,
    Ready,
    SampledToken,
    SamplingParams,
    SeqPlan,
    SeqResult,
    StepPlan,
    StepResult,
    TokenLogprobs,
    ToWorker,
    WorkerStats,
    decode_to_worker,
    encode,
)
from numaserve.workers.process.continuations import Continuations
from played_script import Script

VOCAB = 1000
FIRST_TOKEN = 10  # smaller ids are special and are never sampled
# With --nan: a random prompt of another test must not hold one of them by chance.
NAN_TOKEN = 9  # makes logits that are not numbers, from its position on
LATE_NAN_TOKEN = 8  # the same, from the third position after it on
PAGE_BYTES = 4 * PAGE_SIZE


def next_token(context: bytes, sampling: SamplingParams, adapter: str = "") -> int:
    """The token after `context` (token ids as native 32-bit integers), with the adapter of that digest."""
    seed = sampling.seed if sampling.temperature > 0 else 0
    seed += zlib.crc32(adapter.encode())
    token = FIRST_TOKEN + zlib.crc32(context, seed & 0xFFFFFFFF) % (VOCAB - FIRST_TOKEN)
    while token in sampling.suppress and len(context) // 4 < sampling.min_position:
        token = FIRST_TOKEN + (token + 1 - FIRST_TOKEN) % (VOCAB - FIRST_TOKEN)
    return token


def expected_tokens(
    prompt: list[int],
    sampling: SamplingParams,
    count: int,
    allowed: Callable[[list[int]], set[int]] | None = None,
    adapter: str = "",
) -> list[int]:
    """What a right server samples after `prompt`, whatever else it is doing. `allowed`: what may follow an output."""
    tokens = array("i", prompt)
    for _ in range(count):
        token = next_token(tokens.tobytes(), sampling, adapter)
        tokens.append(token if allowed is None else allowed_token(token, allowed(list(tokens[len(prompt) :]))))
    return list(tokens[len(prompt) :])


def allowed_token(token: int, allowed: set[int]) -> int:
    """The token itself, or the next higher one that is allowed, behind the last one from the first on."""
    return min(allowed, key=lambda other: (other - token) % VOCAB)


def logprobs_of(context: bytes, token: int, top: int) -> TokenLogprobs:
    ids = [FIRST_TOKEN + (zlib.crc32(context) + i) % (VOCAB - FIRST_TOKEN) for i in range(top)]
    return TokenLogprobs(token, -(zlib.crc32(context) % 1000) / 100, ids, [-float(i) for i in range(top)])


def profile_of(request: ProfileRequest, rank: int, steps: int) -> RankProfile:
    """Of a model with two operations: 30 µs and 10 µs of a step, half of the second waiting."""
    operations = [
        OperationProfile("linear", "bf16", 2 * steps, 30_000 * steps, 0, 1000, 1000 * steps, 4000 * steps),
        OperationProfile("add_all_reduce", "bf16", steps, 10_000 * steps, 5_000 * steps, 0, 0, 0),
    ]
    ceilings = Ceilings("fake", 1, 1e9, {"bf16": 1e9}) if request.ceilings else None
    return RankProfile(request.request_id, rank, steps, steps, 50_000 * steps, operations, ceilings)


class Slot:
    def __init__(self, sampling: SamplingParams, pages: list[int], adapter: int) -> None:
        self.adapter = adapter
        self.sampling = sampling
        self.pages = pages
        self.sampled = -1


class FakeModel:
    def __init__(self, launch: Launch, *, nan: bool, script: Script | None) -> None:
        self._nan = nan
        self._script = script
        reads_masks = launch.rank == 0 and launch.mask_fd >= 0
        self._board = Board(launch.mask_fd, launch.mask_nonce) if reads_masks else None
        self._mask_grace_s = launch.mask_grace_s
        self._kv = bytearray(launch.capacity.num_pages * PAGE_BYTES)
        self._slots: dict[int, Slot] = {}
        self.adapters = {0: ""}  # digests, by number
        self._max_slots = launch.capacity.max_slots
        self._continuations = Continuations(reads_drafts=True)

    def step(self, plan: StepPlan) -> list[SeqResult]:
        self.mask_wait_ns = 0
        plan = self._continuations.completed(plan)
        read = {each.index for each in plan.draft_work or []}
        for index, seq in enumerate(plan.seqs):
            assert index in read or TO_BE_DRAFTED not in seq.tokens
        results = [self._verified(*each, plan.step_id) for each in zip(plan.seqs, plan.drafts_of_each, strict=True)]
        self._continuations.ran(plan, (each.tokens for each in results))
        return results

    def _verified(self, seq: SeqPlan, drafts: int, step_id: int) -> SeqResult:
        """Token by token, as far as the drafts are right."""
        known = len(seq.tokens) - drafts
        if not drafts:
            return self._one(seq, step_id)
        result = self._one(replace(seq, tokens=seq.tokens[:known]), step_id)
        token, following = result.token, []
        if result.late:
            return result
        for behind, draft in enumerate(seq.tokens[known:], 1):
            if draft == TO_BE_DRAFTED:  # by a draft model that is wrong about every fifth token
                draft = token if (seq.start + behind) % 5 else FIRST_TOKEN  # noqa: PLW2901
            if draft != token:
                break
            next_one = replace(seq, start=seq.start + known + behind - 1, tokens=[draft], pages=[], init=None)
            more = self._one(next_one, step_id, behind)
            if more.dropped or more.late:
                break
            token = more.token
            following.append(SampledToken(token, more.logprobs, more.token_logprobs))
        return replace(result, following=following)

    def _allowed(self, step_id: int, row: int) -> tuple[set[int] | None, bool]:
        """The tokens that the mask allows, none where the row is dropped, None: all; and whether it is late."""
        assert self._board is not None
        begin = time.monotonic_ns()
        state = self._board.wait(step_id, row, max(0.0, self._mask_grace_s - self.mask_wait_ns / 1e9))
        self.mask_wait_ns += time.monotonic_ns() - begin
        if state != 1:
            return set() if state == 3 else None, state == 0
        bits = int.from_bytes(self._board.bits(step_id, row), "little")
        return {token for token in range(VOCAB) if bits >> token & 1}, False

    def _one(self, seq: SeqPlan, step_id: int, behind: int = 0) -> SeqResult:
        if seq.init is not None:
            self._slots[seq.slot] = Slot(seq.init.sampling, list(seq.pages), seq.init.adapter)
        else:
            self._slots[seq.slot].pages += seq.pages
        slot = self._slots[seq.slot]
        tokens = [slot.sampled] if seq.from_previous else seq.tokens
        for position, token in enumerate(tokens, seq.start):
            at = slot.pages[position // PAGE_SIZE] * PAGE_BYTES + position % PAGE_SIZE * 4
            self._kv[at : at + 4] = token.to_bytes(4, sys.byteorder)
        end = seq.start + len(tokens)
        context = b"".join(self._kv[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] for page in slot.pages)
        echoed = [
            logprobs_of(context[: 4 * (seq.start + 1 + i)], token, max(0, slot.sampling.logprobs))
            for i, token in enumerate(seq.prompt_logprobs)
        ]
        context = context[: 4 * end]
        known = array("i", context)
        spoiled = self._nan and (NAN_TOKEN in known or LATE_NAN_TOKEN in known[:-3])
        nan = spoiled and (seq.sample or bool(echoed))
        if not seq.sample:
            return SeqResult(prompt_logprobs=echoed, nan=nan)
        adapter = self.adapters[slot.adapter]  # one that is not loaded is an error of the front end
        slot.sampled = self._script.next_token(known) if self._script else next_token(context, slot.sampling, adapter)
        reads_mask = slot.sampling.masked and self._board and not self._script
        allowed, late = self._allowed(step_id, seq.slot + behind * self._max_slots) if reads_mask else (None, False)
        if allowed:
            slot.sampled = allowed_token(slot.sampled, allowed)
        top = slot.sampling.logprobs
        logprobs = logprobs_of(context, slot.sampled, top) if top >= 0 else None
        named = [-float(token) for token in slot.sampling.token_ids_logprob]
        return SeqResult(slot.sampled, logprobs, echoed, nan, dropped=allowed == set(), token_logprobs=named, late=late)


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        context = zmq.Context()
        self.socket = context.socket(zmq.PAIR)
        self.socket.connect(options.endpoint)
        self.poller = zmq.Poller()
        self.poller.register(self.socket, zmq.POLLIN)
        self.poller.register(options.lifeline_fd, zmq.POLLIN)
        self.rank: int = options.rank
        self.faulty = options.fault_rank in (-1, self.rank) and _first_time(options.once)

    def run(self) -> None:
        launch = self.receive()
        assert isinstance(launch, Launch)
        if launch.ring_fd >= 0:
            os.fstat(launch.ring_fd)  # it has been inherited
        self.load()
        model = FakeModel(launch, nan=self.options.nan, script=self.options.script)
        adapters = [self.load_adapter(model, each.number, each, loading=True) for each in launch.adapters]
        terms = [OperationTerms("linear", row_flops=1e8)] if self.options.terms else []
        self.send(Ready(self.rank, "fake", 1000 + self.rank, 2000, 3000, 0, terms=terms, adapters=adapters))
        self.send(WorkerStats(self.rank, 1500 + self.rank, 0))
        count = 0
        while isinstance(plan := self.receive(), StepPlan | ProfileRequest | LoadAdapter):
            if isinstance(plan, LoadAdapter):
                self.send(self.load_adapter(model, plan.request_id, plan.adapter))
                continue
            if isinstance(plan, ProfileRequest):
                if not self.options.no_profile:
                    profile = profile_of(plan, self.rank, count)
                    if profile.ceilings is not None and self.options.small_weights:
                        profile = replace(profile, ceilings=replace(profile.ceilings, read_bytes_s=None))
                    self.send(profile)
                continue
            received = time.perf_counter_ns()
            if self.faulty and not self.survives(plan, count):
                count += 1
                continue
            count += 1
            seqs = model.step(plan)
            if self.options.step_ms:
                time.sleep(self.options.step_ms / 1000)
            elapsed = time.perf_counter_ns() - received
            answer = seqs if self.rank == 0 else []
            self.send(StepResult(plan.step_id, self.rank, answer, elapsed, elapsed // 10, elapsed, model.mask_wait_ns))
        if self.options.slow_end:
            time.sleep(3600)

    def load_adapter(
        self, model: FakeModel, request_id: int, adapter: LoraAdapter, *, loading: bool = False
    ) -> AdapterLoaded:
        """Load an adapter, whose path may say what goes wrong at the rank with faults."""
        model.adapters.pop(adapter.number, None)
        if self.faulty and ("refused" in adapter.path or (loading and "gone" in adapter.path)):
            return AdapterLoaded(self.rank, request_id, 0, "no memory for it")
        model.adapters[adapter.number] = adapter.digest
        return AdapterLoaded(self.rank, request_id, 7)

    def load(self) -> None:
        options = self.options
        if self.faulty and options.fail_load:
            self.send(Failure(self.rank, -1, options.fail_load))
            time.sleep(0.05)  # real weights take a while to free, too
            sys.exit(1)
        if self.faulty and options.die_loading:
            sys.exit(3)
        while options.weights is not None and not options.weights.exists():
            time.sleep(0.005)
        for part in range(1, 5):
            self.send(LoadProgress(self.rank, part * 250, 1000))

    def survives(self, plan: StepPlan, count: int) -> bool:
        """Commit the faults that were asked for; False when the plan is not to be run."""
        options = self.options
        if options.garbage:
            for frame in (
                b"",
                bytes([PROTOCOL_VERSION]),
                b"garbage",
                encode(Ready(self.rank, "x", 1, 1, 1, 1))[:-3],
                b"\xff" * 1000,
            ):
                self.socket.send(frame)
            self.socket.send(encode(Ready(self.rank + 1, "x", 1, 1, 1, 1)))
            self.socket.send_multipart([b"\x01", b"\x02"])
            self.send(StepResult(plan.step_id + 1000, self.rank, [], 0, 0, 0))
        if count == options.die_at_step:
            os.kill(os.getpid(), signal.SIGKILL)
        if options.die_of_token >= 0 and any(options.die_of_token in seq.tokens for seq in plan.seqs):
            os.kill(os.getpid(), signal.SIGKILL)
        if count == options.hang_at_step:
            time.sleep(3600)
        if count == options.fail_step:
            self.send(Failure(self.rank, plan.step_id, "this step failed on purpose"))
            return False
        return True

    def send(self, message: FromWorker) -> None:
        self.socket.send(encode(message))

    def receive(self) -> ToWorker:
        while True:
            ready = dict(self.poller.poll())
            if self.options.lifeline_fd in ready:
                os._exit(1)
            try:
                return decode_to_worker(self.socket.recv())
            except ProtocolError as error:
                sys.stderr.write(f"fake worker: {error}\n")


def _first_time(marker: Path | None) -> bool:
    """Whether nobody has made `marker` yet: faults that should happen in one life of the group only."""
    if marker is None:
        return True
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--lifeline-fd", type=int, required=True)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--fault-rank", type=int, default=-1, help="only this rank commits the faults")
    parser.add_argument("--once", type=Path, default=None)
    parser.add_argument("--weights", type=Path, help="wait for this file before loading")
    parser.add_argument("--fail-load", default="")
    parser.add_argument("--die-loading", action="store_true")
    parser.add_argument("--garbage", action="store_true")
    parser.add_argument("--terms", action="store_true", help="tell what operations take, so that steps are predicted")
    parser.add_argument("--small-weights", action="store_true", help="be no measure of reading from memory")
    parser.add_argument("--no-profile", action="store_true", help="never answer a request for a profile")
    parser.add_argument("--nan", action="store_true", help="let two tokens make logits that are not numbers")
    parser.add_argument("--script", type=lambda path: Script(Path(path)), help="play these answers")
    parser.add_argument("--slow-end", action="store_true", help="have much to do still when told to end")
    for fault in ("die-at-step", "die-of-token", "hang-at-step", "fail-step"):
        parser.add_argument(f"--{fault}", type=int, default=-1)
    Worker(parser.parse_args()).run()


if __name__ == "__main__":
    main()
