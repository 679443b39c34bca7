"""The compiling of constraints: off the event loop, bounded, once for equal ones of a scope."""

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

_LARGEST_AHEAD = 16 * 1024  # characters of a grammar that is compiled once more for each sequence, to look ahead
_SLOW_S = 0.01  # of a mask, of processor time: a matcher with such masks works in a process from the beginning
_LEAST_BYTES = 64 * 1024  # of a compiled grammar, however small it is


class Loaded(NamedTuple):
    """The tokenizer in llguidance's form, and the processes that have it too, once they are needed."""

    vocabulary: Vocabulary
    tokenizer: LLTokenizer
    processes: MatcherProcesses


class Grammars:
    """Compiles constraints, each first in a process for trial, and keeps the compiled ones. For one event loop.

    Only requests of one scope share a compilation, as they share cached prefixes: one that takes no time would show
    that another client has sent the same schema.

    Nothing is loaded before the first constraint comes, or `prepare` is called.
    """

    def __init__(self, tokenizer: DefinedTokenizer, model_vocab_size: int, limits: Limits | None = None) -> None:
        """`model_vocab_size` is the number of logits, whatever the tokenizer has."""
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
        """Return what makes matchers for `constraint`, compiled for a request of `scope`.

        Raises `UnsupportedGrammar` and `GrammarTooSlow`, whose messages are for the client, `QueueFull` where as many
        compile or wait as may, and `NotReady` once this is closed.
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
            # Those that come from now on shall not wait for what has ended or was given up.
            if not shared.is_wanted and self._in_work.get(scoped) is shared:
                del self._in_work[scoped]

    def prepare(self) -> Loaded:
        """Load the tokenizer, once, which holds the GIL for some tenths of a second; in any thread."""
        with self._loading:
            if self._loaded is None:
                vocabulary = Vocabulary.of(self._tokenizer, self._model_vocab_size)
                self._loaded = Loaded(vocabulary, vocabulary.load(), MatcherProcesses(vocabulary))
            return self._loaded

    def close(self) -> None:
        """Compile nothing more and end the processes; what runs here is not waited for."""
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
        """What makes matchers, and about how many bytes it takes; in a thread."""
        vocabulary, tokenizer, processes = self.prepare()
        with self._trial(vocabulary) as trial:
            answer = trial.run(constraint)
        move = partial(ConfinedMatcher, processes, answer.grammar)
        if answer.mask_seconds > _SLOW_S:
            return partial(move, ()), _LEAST_BYTES + len(answer.grammar) + len(constraint.text)
        matcher = new_matcher(tokenizer, answer.grammar)
        matcher.compute_bitmask()  # each copy has the states that this makes
        if matcher.is_error():  # not seen in the trial
            raise UnsupportedGrammar("compiling it fails")
        nbytes = _LEAST_BYTES + answer.memory_bytes + len(answer.grammar) + len(constraint.text)
        ahead = partial(new_matcher, tokenizer, answer.grammar) if len(answer.grammar) <= _LARGEST_AHEAD else None
        return partial(_fresh, matcher, vocabulary.size, frozenset(vocabulary.eos), ahead, move), nbytes

    @contextmanager
    def _trial(self, vocabulary: Vocabulary) -> Iterator[Trial]:
        """A process for trial that no other thread uses."""
        try:
            trial = self._idle.pop()  # the one used last: a second is started only when two are needed at once
        except IndexError:
            trial = Trial(vocabulary, self._limits)
            self._trials.append(trial)
        if self._closed.is_set():  # asked after the append: `close` may not have seen the new one
            raise NotReady("The server is shutting down.")
        try:
            yield trial
        finally:
            self._idle.append(trial)
            if self._closed.is_set():  # asked after the append: `close` may not have seen it among the idle
                trial.stop()


class _Shared:
    """A compilation that several requests may wait for; it is given up with the last of them."""

    def __init__(self, task: asyncio.Task[MatcherFactory]) -> None:
        self._task = task
        self._waiting = 0

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for it."""
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
