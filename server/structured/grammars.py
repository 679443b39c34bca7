"""Compilation of constraints: off the event loop, bounded, and once for equal constraints of a scope."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from llguidance import LLMatcher, LLTokenizer
from numaserve.server.engine.types import NotReady
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.structured.grammar_cache import GrammarCache, Scoped
from numaserve.server.structured.json_text import utf8
from numaserve.server.structured.matchers.confined_matcher import ConfinedMatcher, MatcherProcesses
from numaserve.server.structured.matchers.matcher import GrammarMatcher
from numaserve.server.structured.matchers.movable_matcher import MovableMatcher
from numaserve.server.structured.parser_limits import new_matcher
from numaserve.server.structured.trial.trial import Trial
from numaserve.server.structured.types import Constraint, Limits, MatcherFactory, UnsupportedGrammar
from numaserve.server.structured.vocabulary import DefinedTokenizer, Vocabulary
from numaserve.server.text.caller import CALLER
from numaserve.server.text.executor import Executor

_LARGEST_AHEAD = 16 * 1024  # characters of a grammar that is compiled again for each sequence, to look ahead
_SLOW_S = 0.01  # CPU time of one mask; a slower matcher runs in a separate process from the beginning
_LEAST_BYTES = 64 * 1024  # the minimum size that is charged for a compiled grammar


class Loaded(NamedTuple):
    """The tokenizer in llguidance's form, and the processes that load it too when they are first needed."""

    vocabulary: Vocabulary
    tokenizer: LLTokenizer
    processes: MatcherProcesses


class Grammars:
    """Compiles constraints, each first in a sandbox, and caches the compiled grammars. For one event loop.

    Only requests of one scope share a compilation, as they share cached prefixes: a compilation that takes no time
    would reveal that another client has sent the same schema.

    Nothing is loaded before the first constraint, or a call of `prepare`.
    """

    def __init__(self, tokenizer: DefinedTokenizer, model_vocab_size: int, limits: Limits | None = None) -> None:
        """Load nothing yet. `model_vocab_size` is the number of logits, which may differ from the tokenizer's
        vocabulary."""
        self._limits = limits or Limits()
        self._tokenizer = tokenizer
        self._model_vocab_size = model_vocab_size
        self._kept = GrammarCache(self._limits.cache_bytes)
        self._in_work: dict[Scoped, _Shared] = {}
        self._executor = Executor(
            "grammar", threads=self._limits.threads, max_requests=self._limits.queue, waiting="grammars"
        )
        self._loading = threading.Lock()
        self._loaded: Loaded | None = None
        self._idle: deque[Trial] = deque()
        self._trials: list[Trial] = []
        self._closed = threading.Event()

    async def compile(self, constraint: Constraint, scope: CacheScope) -> MatcherFactory:
        """Return the factory of matchers for `constraint`, compiled for a request of `scope`.

        Raises `UnsupportedGrammar` and `GrammarTooSlow`, whose messages are for the client. Raises `QueueFull` if the
        maximum number of compilations is running or waiting, and `NotReady` once this is closed.
        """
        scoped = scope, constraint
        if (kept := self._kept.get(scoped)) is not None:
            return kept
        _check_text(constraint.text, self._limits.max_bytes)
        shared = self._in_work.get(scoped)
        if shared is None:
            shared = self._in_work[scoped] = _Shared(asyncio.create_task(self._compile_admitted(scoped)))
        try:
            return await shared.result()
        finally:
            # Later requests must not wait for a compilation that has ended or was cancelled.
            if not shared.is_wanted and self._in_work.get(scoped) is shared:
                del self._in_work[scoped]

    def prepare(self) -> Loaded:
        """Load the tokenizer, once; any thread may call this. It holds the GIL for some tenths of a second."""
        with self._loading:
            if self._loaded is None:
                vocabulary = Vocabulary.of(self._tokenizer, self._model_vocab_size)
                self._loaded = Loaded(vocabulary, vocabulary.load(), MatcherProcesses(vocabulary))
            return self._loaded

    def close(self) -> None:
        """Compile nothing more and end the processes; compilations in threads of this process are not waited for."""
        self._closed.set()
        self._executor.close()
        if self._loaded is not None:
            self._loaded.processes.close()
        for trial in tuple(self._trials):
            trial.close()
        while self._idle:
            self._idle.pop().stop()

    async def _compile_admitted(self, scoped: Scoped) -> MatcherFactory:
        _, constraint = scoped
        with self._executor.admitted():
            factory, nbytes = await self._executor.run(partial(self._compile, constraint))
        self._kept.keep(CALLER.get().name, scoped, factory, nbytes)
        return factory

    def _compile(self, constraint: Constraint) -> tuple[MatcherFactory, int]:
        """Return the factory of matchers and its approximate size in bytes; runs in a thread."""
        vocabulary, tokenizer, processes = self.prepare()
        with self._trial(vocabulary) as trial:
            answer = trial.run(constraint)
        move = partial(ConfinedMatcher, processes, answer.grammar)
        if answer.mask_seconds > _SLOW_S:
            return partial(move, ()), _LEAST_BYTES + len(answer.grammar) + len(constraint.text)
        matcher = new_matcher(tokenizer, answer.grammar)
        matcher.compute_bitmask()  # computes states that all copies then share
        if matcher.is_error():  # not detected in the sandbox
            raise UnsupportedGrammar("compiling it fails")
        nbytes = _LEAST_BYTES + answer.memory_bytes + len(answer.grammar) + len(constraint.text)
        ahead = partial(new_matcher, tokenizer, answer.grammar) if len(answer.grammar) <= _LARGEST_AHEAD else None
        return partial(_fresh, matcher, vocabulary.size, frozenset(vocabulary.eos), ahead, move), nbytes

    @contextmanager
    def _trial(self, vocabulary: Vocabulary) -> Iterator[Trial]:
        """Return a context with a sandbox process that no other thread uses."""
        try:
            trial = self._idle.pop()  # the one used last: a second is started only when two are needed at once
        except IndexError:
            trial = Trial(vocabulary, self._limits)
            self._trials.append(trial)
        if self._closed.is_set():  # checked after the append: `close` may have missed the new one
            raise NotReady("The server is shutting down.")
        try:
            yield trial
        finally:
            self._idle.append(trial)
            if self._closed.is_set():  # checked after the append: `close` may have missed it among the idle ones
                trial.stop()


class _Shared:
    """A compilation that several requests may wait for; it is cancelled when the last of them leaves."""

    def __init__(self, task: asyncio.Task[MatcherFactory]) -> None:
        self._task = task
        self._waiting = 0

    @property
    def is_wanted(self) -> bool:
        """Whether a request waits for it."""
        return self._waiting > 0

    async def result(self) -> MatcherFactory:
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._task.cancel()


def _check_text(text: str, max_bytes: int) -> None:
    if len(text) > max_bytes or len(utf8(text)) > max_bytes:
        raise UnsupportedGrammar(f"the constraint is longer than {max_bytes} bytes")


def _fresh(
    matcher: LLMatcher,
    vocab_size: int,
    eos: frozenset[int],
    ahead: Callable[[], LLMatcher] | None,
    move: Callable[[list[int]], ConfinedMatcher],
) -> MovableMatcher:
    return MovableMatcher(GrammarMatcher(matcher.deep_copy(), vocab_size, eos, ahead), move)
