"""Matchers in processes that can be killed, for grammars that take long at each token.

llguidance bounds the cost of a mask by counts (see `parser_limits`), which an ambiguous grammar evades: items are
counted, but not the comparisons for each item. A thread that computes a mask cannot be stopped, takes a core from the
workers, and holds the GIL while it accepts a token. A process has a limit of processor time, and idle priority.
"""

import ctypes
import itertools
import threading
from base64 import b85decode
from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec
from numaserve.server.confined.worker import ConfinedWorker, WorkerUnavailable, WorkFailed
from numaserve.server.scheduler.matcher import ConstraintFailed, MaskState
from numaserve.server.structured.matchers.process import UNKNOWN, Piece
from numaserve.server.structured.vocabulary import Vocabulary

_MODULE = "numaserve.server.structured.matchers.process"
_PROCESSES = 2
_MEMORY_BYTES = 1536 * 2**20  # includes the tokenizer's memory
_CPU_SECONDS = 2.0  # for a token, or for the whole answer so far if the process is new
_MAKE_CPU_SECONDS = 10.0  # to load the tokenizer
_SECONDS = 60.0  # wall time: a process of idle priority may wait long; requests have a shorter timeout


class MatcherProcesses:
    """The matcher processes, started when they are first needed. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._config = {"vocabulary": msgspec.to_builtins(vocabulary)}
        self._max_bytes = 2 * vocabulary.size // 8 + 1024
        self._workers: list[ConfinedWorker | None] = [None] * _PROCESSES
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._closed = False

    def new_id(self) -> int:
        """Return an unused id for a matcher."""
        return next(self._ids)

    def mask(self, piece: Piece, whole: Piece) -> bytes:
        """Return the mask after the tokens of `piece`, or those of `whole` if the process does not have the matcher.

        Raises `ConstraintFailed`.
        """
        worker = self._worker(piece.id % _PROCESSES)
        try:
            answer = worker.ask(msgspec.json.encode(piece))
            if answer == UNKNOWN:
                answer = worker.ask(msgspec.json.encode(whole))
        except (WorkFailed, WorkerUnavailable) as error:
            raise ConstraintFailed(f"The constraint allows no continuation of the output: {error}.") from None
        return b85decode(answer)

    def close(self) -> None:
        """End the processes, in the middle of a mask too."""
        with self._lock:
            self._closed = True
            workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.close()

    def _worker(self, index: int) -> ConfinedWorker:
        with self._lock:
            if self._closed:
                raise ConstraintFailed("The server is shutting down.")
            worker = self._workers[index]
            if worker is None:
                worker = self._workers[index] = ConfinedWorker(
                    "the constraint",
                    _MODULE,
                    self._config,
                    max_bytes=self._max_bytes,
                    memory_bytes=_MEMORY_BYTES,
                    cpu_seconds=_CPU_SECONDS,
                    make_cpu_seconds=_MAKE_CPU_SECONDS,
                    seconds=_SECONDS,
                    idle=True,
                )
            return worker


class ConfinedMatcher:
    """Implements `TokenMatcher`; another process computes each mask, while the calling thread sleeps."""

    is_confined = True

    def __init__(self, processes: MatcherProcesses, grammar: str, tokens: Iterable[int]) -> None:
        """Add a matcher of `grammar` to the processes. `tokens` are the answer so far."""
        self._processes = processes
        self._grammar = grammar
        self._tokens = list(tokens)
        self._known = 0  # number of tokens that the process has accepted
        self._id = processes.new_id()

    def confine(self) -> None:
        """Do nothing: the matcher is already confined."""

    def accept(self, token: int) -> None:
        """Record the sampled token; the next mask fails if the grammar does not allow it."""
        self._tokens.append(token)

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        """Write the mask of the next position to the `nbytes` bytes at `address`. Raises `ConstraintFailed`."""
        piece = Piece(self._id, self._tokens[self._known :], self._known)
        mask = self._processes.mask(piece, Piece(self._id, self._tokens, grammar=self._grammar))
        self._known = len(self._tokens)
        ctypes.memset(address, 0, nbytes)
        ctypes.memmove(address, mask, min(len(mask), nbytes))
        return MaskState.MASK

    def fork(self) -> NoReturn:
        """Raise `ConstraintFailed`: a confined matcher cannot look ahead."""
        raise ConstraintFailed("Draft tokens are not supported for a constraint that is slow to compute.")

    def would_accept(self, tokens: Sequence[int]) -> int:
        """Raise `ConstraintFailed`: a confined matcher cannot look ahead."""
        raise ConstraintFailed("Draft tokens are not supported for a constraint that is slow to compute.")

    def forced(self) -> Sequence[int]:
        """Raise `ConstraintFailed`: a confined matcher cannot look ahead."""
        raise ConstraintFailed("Draft tokens are not supported for a constraint that is slow to compute.")
