"""Matchers in processes that may be killed: for grammars that take long at each token.

llguidance bounds what a mask takes by counts (see `parser_limits`), which an ambiguous grammar gets around: items are
counted, and not what is compared for each. A thread that computes one cannot be stopped, and takes a core from the
workers; and a token is accepted with the GIL held. A process has a limit of processor time, and the idle priority.
"""

import ctypes
import itertools
import threading
from base64 import b85decode
from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec
from numaserve.server.confined.worker import ConfinedWorker, WorkerUnavailable, WorkFailed
from numaserve.server.engine.masks.matcher import ConstraintFailed, MaskState
from numaserve.server.structured.matchers.process import UNKNOWN, Piece
from numaserve.server.structured.vocabulary import Vocabulary

_MODULE = "numaserve.server.structured.matchers.process"
_PROCESSES = 2
_MEMORY_BYTES = 1536 * 2**20  # the tokenizer's, too
_CPU_SECONDS = 2.0  # for a token, or for all of an answer where a process is new
_MAKE_CPU_SECONDS = 10.0  # for the tokenizer
_SECONDS = 60.0  # wall time: the idle priority may have to wait long; requests have a shorter patience


class MatcherProcesses:
    """The processes, started when they are first needed. For several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._config = {"vocabulary": msgspec.to_builtins(vocabulary)}
        self._max_bytes = 2 * vocabulary.size // 8 + 1024
        self._workers: list[ConfinedWorker | None] = [None] * _PROCESSES
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._closed = False

    def new_id(self) -> int:
        """Return the id of a matcher that is new."""
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
    """Implements `TokenMatcher`; each mask is computed elsewhere, while the thread that wants it sleeps."""

    is_confined = True

    def __init__(self, processes: MatcherProcesses, grammar: str, tokens: Iterable[int]) -> None:
        """`tokens` are those of the answer until now."""
        self._processes = processes
        self._grammar = grammar
        self._tokens = list(tokens)
        self._known = 0  # of these, those that the process has
        self._id = processes.new_id()

    def confine(self) -> None:
        """Do nothing: it is confined."""

    def accept(self, token: int) -> None:
        """Take in the sampled token; whether it is allowed shows with the next mask."""
        self._tokens.append(token)

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        """Write the bits of the next position to the `nbytes` bytes at `address`. Raises `ConstraintFailed`."""
        piece = Piece(self._id, self._tokens[self._known :], self._known)
        mask = self._processes.mask(piece, Piece(self._id, self._tokens, grammar=self._grammar))
        self._known = len(self._tokens)
        ctypes.memset(address, 0, nbytes)
        ctypes.memmove(address, mask, min(len(mask), nbytes))
        return MaskState.MASK

    def fork(self) -> NoReturn:
        """Raise `ConstraintFailed`: nothing looks ahead here."""
        raise ConstraintFailed("Draft tokens are not supported for a constraint that is slow to compute.")

    def would_accept(self, tokens: Sequence[int]) -> int:
        """Raise `ConstraintFailed`: nothing looks ahead here."""
        raise ConstraintFailed("Draft tokens are not supported for a constraint that is slow to compute.")

    def forced(self) -> Sequence[int]:
        """Raise `ConstraintFailed`: nothing looks ahead here."""
        raise ConstraintFailed("Draft tokens are not supported for a constraint that is slow to compute.")
