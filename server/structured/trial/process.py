"""The process of sandboxed compiles, each in a fork that may crash, hang or fill its memory. Started by `Trial`.

The process loads the tokenizer once and reads lines of JSON: first the settings, then one constraint per line. A fork
compiles each constraint. Its memory is freed with it, and the next fork finds the tokenizer loaded, however the last
one ended. The fork confines itself before it parses the constraint; this process never parses one.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer
from numaserve.server.confined.confinement import confine, ignore_ends_of_the_group
from numaserve.server.confined.fork import end_with
from numaserve.server.structured.complaints import refusal
from numaserve.server.structured.long_answers import begin_choices, counts_far, walk
from numaserve.server.structured.parser_limits import new_matcher
from numaserve.server.structured.translate import grammars_of_far_patterns, to_llguidance
from numaserve.server.structured.trial.answer import HEAD, NOT_CONFINED, Answer, Settings
from numaserve.server.structured.types import Constraint, GrammarTooSlow, UnsupportedGrammar

# Smaller than a server thread's stack: a grammar that exhausts the stack does so here.
_STACK_BYTES = 2**20
_TOKENS = 4  # tokens of a simulated answer
_PAGE = resource.getpagesize()
# A signal does not show whether the stack or the memory was exhausted, because one grows into the other.
_TOO_LARGE = "the constraint is nested too deeply, has too many parts, or needs too much memory"


def _compile(tokenizer: LLTokenizer, settings: Settings, line: bytes) -> Answer:
    try:
        constraint = msgspec.json.decode(line, type=Constraint)
        grammar = to_llguidance(constraint, settings.vocabulary.special, settings.limits)
        mask_seconds = _answer_for_trial(tokenizer, grammar, constraint)
        for each in grammars_of_far_patterns(constraint, settings.limits):
            mask_seconds = max(mask_seconds, _answer_for_trial(tokenizer, each, constraint))
        if mask_seconds > settings.limits.mask_seconds:
            raise GrammarTooSlow(
                f"computing the allowed next tokens takes {mask_seconds:.2g} s of processor time (limit "
                f"{settings.limits.mask_seconds:g} s); shorten the strings of the constraint or make "
                "the constraint less ambiguous"
            )
    except UnsupportedGrammar as error:
        return Answer(refused=str(error), keyword=error.keyword)
    except MemoryError:
        return Answer(refused=_TOO_LARGE)
    return Answer(grammar=grammar, mask_seconds=mask_seconds)


def _answer_for_trial(tokenizer: LLTokenizer, grammar: str, constraint: Constraint) -> float:
    """Begin an answer, continue it if the constraint has large counts, and return the CPU seconds of the slowest first
    mask.

    Raises `UnsupportedGrammar`.
    """
    make = partial(new_matcher, tokenizer, grammar)
    matcher = make()
    tokens, seconds = _take_some_tokens(matcher)
    if not matcher.is_error():
        if constraint.kind == "choice":
            matcher = begin_choices(tokenizer, make, msgspec.json.decode(constraint.text))
        elif counts_far(constraint.text):
            matcher = walk(tokenizer, make, tokens)
    if matcher.is_error():
        raise refusal(matcher.get_error())
    return seconds


def _take_some_tokens(matcher: LLMatcher) -> tuple[list[int], float]:
    """Begin an answer, because only masks show that a grammar is too large for them.

    Return its tokens, and the CPU seconds of the slowest mask.
    """
    tokens: list[int] = []
    slowest = 0.0
    for step in range(_TOKENS):
        if matcher.is_stopped():  # failed, or ended
            break
        begun = time.process_time()
        mask = matcher.compute_bitmask()
        slowest = max(slowest, time.process_time() - begun)
        start = step * len(mask) // _TOKENS
        places = (*range(start, len(mask)), *range(start))
        place = next((place for place in places if mask[place]), None)
        if place is not None:
            tokens.append(8 * place + (mask[place] & -mask[place]).bit_length() - 1)
            matcher.consume_token(tokens[-1])
    return tokens, slowest


def _become_a_trial(settings: Settings, memory_bytes: int, parent: int) -> None:
    """Give up every right except computing, set the time limits, and die with the parent process."""
    limits = settings.limits
    end_with(parent)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the constraints, the answers, and Rust's panic messages
        os.dup2(nowhere, descriptor)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, _STACK_BYTES))
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, limits.seconds)
    confine(memory_bytes)


def _in_a_fork(work: Callable[[], Answer], become: Callable[[], None]) -> tuple[Answer, int]:
    """Return the answer of `work`, called in a fork after `become`, and the fork's peak memory in bytes."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become()
        except OSError:
            os._exit(NOT_CONFINED)
        data = msgspec.json.encode(work())
        while data:
            data = data[os.write(sink, data) :]
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as pipe:
        data = pipe.read()
    _, status, usage = os.wait4(child, 0)
    return _answer(os.waitstatus_to_exitcode(status), data), usage.ru_maxrss * 1024


def _answer(status: int, data: bytes) -> Answer:
    if status == 0:
        return msgspec.json.decode(data, type=Answer)
    if status == NOT_CONFINED:
        return Answer(unavailable="Grammars require a kernel that supports seccomp filters; this one does not.")
    if -status in (signal.SIGPROF, signal.SIGALRM):
        return Answer(too_slow=True)
    return Answer(refused=_TOO_LARGE)


def main() -> None:
    """Serve sandboxed compiles until the input ends."""
    ignore_ends_of_the_group()
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = source.readline()
    if not first:
        return  # the server ended before it sent the settings
    settings = msgspec.json.decode(first, type=Settings)
    tokenizer = settings.vocabulary.load()
    own_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
    me = os.getpid()

    def become() -> None:
        _become_a_trial(settings, own_bytes + settings.limits.memory_bytes, me)

    _, least = _in_a_fork(Answer, become)
    for line in source:

        def work(line: bytes = line) -> Answer:
            return _compile(tokenizer, settings, line)

        answer, most = _in_a_fork(work, become)
        answer.memory_bytes = max(0, most - least)
        data = msgspec.json.encode(answer)
        sink.write(HEAD.pack(len(data)) + data)
        sink.flush()


if __name__ == "__main__":
    main()
