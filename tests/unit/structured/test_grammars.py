"""Compiling: for trial first, shared, kept, bounded, and harmless whatever the constraint."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest
from numaserve.server.engine.types import NotReady, QueueFull
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE, CacheScope
from numaserve.server.scheduler.client import Client
from numaserve.server.structured.grammars import Grammars
from numaserve.server.structured.trial.answer import Answer
from numaserve.server.structured.trial.trial import Trial
from numaserve.server.structured.types import Constraint, GrammarTooSlow, Limits, UnsupportedGrammar
from numaserve.server.text.caller import CALLER
from numaserve.server.tokenizer import Tokenizer

from tests.support.masks import matches

_NUMBER = Constraint("json_schema", '{"type": "integer"}')
# Their least common multiple has sixteen digits, and llguidance looks for a remainder of it.
_ENDLESS = Constraint(
    "json_schema", json.dumps({"allOf": [{"type": "integer", "multipleOf": n} for n in (9973, 9967, 9949, 9941)]})
)
_PATIENT = Limits(cpu_seconds=200.0, seconds=200.0)


@pytest.fixture
def make(tokenizer: Tokenizer) -> Iterator[Callable[..., Grammars]]:
    """Makes grammars that are closed afterwards, and leave no process."""
    made: list[Grammars] = []

    def make(limits: Limits | None = None) -> Grammars:
        made.append(Grammars(tokenizer, tokenizer.vocab_size, limits))
        return made[-1]

    before = psutil.Process().children(recursive=True)
    yield make
    for grammars in made:
        grammars.close()
    # A thread that was at work reaps its process itself.
    _, alive = psutil.wait_procs([p for p in psutil.Process().children(recursive=True) if p not in before], timeout=60)
    assert not alive


async def test_each_matcher_starts_at_the_beginning(make: Callable[..., Grammars], tokenizer: Tokenizer) -> None:
    factory = await make().compile(_NUMBER, COMMON_SCOPE)
    for text in ("12", "3"):
        assert await asyncio.to_thread(matches, factory(), tokenizer, text)


async def test_equal_constraints_are_compiled_once(make: Callable[..., Grammars]) -> None:
    grammars = make()
    first, second = await asyncio.gather(
        grammars.compile(_NUMBER, COMMON_SCOPE), grammars.compile(_NUMBER, COMMON_SCOPE)
    )
    assert first is second
    assert await grammars.compile(_NUMBER, COMMON_SCOPE) is first


async def test_nothing_compiled_or_in_work_for_one_scope_saves_another_the_compiling(
    make: Callable[..., Grammars], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, run = list[Constraint](), Trial.run

    def counted(trial: Trial, constraint: Constraint) -> Answer:
        compiled.append(constraint)
        return run(trial, constraint)

    monkeypatch.setattr(Trial, "run", counted)
    grammars = make()
    scopes = [CacheScope(), CacheScope("team"), CacheScope(salt="s"), CacheScope("team", "s")]
    at_once = await asyncio.gather(*(grammars.compile(_NUMBER, scope) for scope in scopes))
    assert len(set(map(id, at_once))) == len(compiled) == 4
    assert [await grammars.compile(_NUMBER, scope) for scope in scopes] == at_once
    await grammars.compile(_NUMBER, CacheScope("late"))
    assert len(compiled) == 5


async def test_one_client_that_leaves_takes_nothing_from_another(make: Callable[..., Grammars]) -> None:
    grammars = make()
    leaving, staying = (asyncio.create_task(grammars.compile(_NUMBER, COMMON_SCOPE)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying is await grammars.compile(_NUMBER, COMMON_SCOPE)


async def test_a_constraint_that_everybody_left_can_come_again(make: Callable[..., Grammars]) -> None:
    grammars = make()
    leaving = asyncio.create_task(grammars.compile(_NUMBER, COMMON_SCOPE))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    assert await grammars.compile(_NUMBER, COMMON_SCOPE)


async def test_other_constraints_are_compiled_beside_an_endless_one(make: Callable[..., Grammars]) -> None:
    grammars = make(_PATIENT)
    endless = asyncio.create_task(grammars.compile(_ENDLESS, COMMON_SCOPE))
    await grammars.compile(_NUMBER, COMMON_SCOPE)
    assert not endless.done()
    grammars.close()
    with pytest.raises(NotReady):
        await endless


async def test_more_constraints_than_may_wait_are_refused(make: Callable[..., Grammars]) -> None:
    grammars = make(Limits(cpu_seconds=200.0, seconds=200.0, queue=1))
    endless = asyncio.create_task(grammars.compile(_ENDLESS, COMMON_SCOPE))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="Too many grammars"):
        await grammars.compile(_NUMBER, COMMON_SCOPE)
    endless.cancel()


async def test_a_constraint_that_takes_too_much_memory_is_refused(make: Callable[..., Grammars]) -> None:
    grammars = make(Limits(cpu_seconds=60.0, seconds=60.0, memory_bytes=64 * 2**20))
    with pytest.raises(UnsupportedGrammar, match="memory"):
        await grammars.compile(Constraint("regex", "((((a{100}){100}){100}){100})"), COMMON_SCOPE)
    assert await grammars.compile(_NUMBER, COMMON_SCOPE)


async def test_a_process_of_trials_that_was_killed_is_started_again(make: Callable[..., Grammars]) -> None:
    grammars = make()
    before = psutil.Process().children()
    await grammars.compile(_NUMBER, COMMON_SCOPE)
    (started,) = [process for process in psutil.Process().children() if process not in before]
    started.kill()
    assert await grammars.compile(Constraint("regex", "a"), COMMON_SCOPE)


async def test_a_process_of_trials_that_was_stopped_holds_nobody_for_ever(make: Callable[..., Grammars]) -> None:
    grammars = make(Limits(seconds=0.2))
    before = psutil.Process().children()
    await grammars.compile(_NUMBER, COMMON_SCOPE)
    (started,) = [process for process in psutil.Process().children() if process not in before]
    os.kill(started.pid, signal.SIGSTOP)
    with pytest.raises(GrammarTooSlow):
        await grammars.compile(Constraint("regex", "a"), COMMON_SCOPE)
    assert await grammars.compile(Constraint("regex", "b"), COMMON_SCOPE)


@pytest.mark.parametrize(
    ("text", "said"), [("x" * 600_000, "longer than"), ("ü" * 300_000, "longer than"), ("\ud800", "surrogate")]
)
async def test_a_text_that_is_too_long_or_no_text_is_refused_at_once(
    make: Callable[..., Grammars], text: str, said: str
) -> None:
    with pytest.raises(UnsupportedGrammar, match=said):
        await make().compile(Constraint("regex", text), COMMON_SCOPE)


async def test_nothing_is_compiled_after_closing(make: Callable[..., Grammars]) -> None:
    grammars = make()
    grammars.close()
    with pytest.raises(NotReady):
        await grammars.compile(_NUMBER, COMMON_SCOPE)


async def test_no_process_is_started_before_the_first_constraint(make: Callable[..., Grammars]) -> None:
    before = psutil.Process().children()
    grammars = make()
    grammars.prepare()
    assert psutil.Process().children() == before


async def test_a_compiled_grammar_counts_for_the_client_that_asked_for_it(make: Callable[..., Grammars]) -> None:
    grammars = make()
    other = Constraint("regex", "a")
    for client, constraint in (("one", _NUMBER), ("two", other), ("two", _NUMBER)):
        CALLER.set(Client(client))
        await grammars.compile(constraint, COMMON_SCOPE)
    assert grammars._kept._kept._owners == {(COMMON_SCOPE, _NUMBER): b"one", (COMMON_SCOPE, other): b"two"}
