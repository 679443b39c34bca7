"""Sandboxed compiles, in a process that a grammar may crash, hang or fill.

llguidance bounds most of the cost of a grammar, but not all. A chain of 30,000 references exhausts the stack, which
ends the process, and four large `multipleOf` together hold a thread for minutes. So each grammar is first compiled in a
sandbox with the same limits, and in the server only after that has succeeded.
"""

from typing import NoReturn

import msgspec
from numaserve.server.common.patience import Patience
from numaserve.server.confined.child_process import ChildProcess, Ended, TooLate
from numaserve.server.engine.types import NotReady
from numaserve.server.structured.trial.answer import HEAD, Answer, Settings
from numaserve.server.structured.types import Constraint, GrammarTooSlow, Limits, UnsupportedGrammar
from numaserve.server.structured.vocabulary import Vocabulary
from numaserve.workers.interface.python_process import module_command

_COMMAND = module_command("numaserve.server.structured.trial.process")
_START_SECONDS = 30.0  # to load the tokenizer, on a machine whose cores are all busy
_SPARE_SECONDS = 1.0  # for the process to report that its fork was too slow


class Trial:
    """One sandbox process, started when it is first needed. For one thread at a time, except for `close`."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits) -> None:
        self._settings = msgspec.json.encode(Settings(vocabulary, limits)) + b"\n"
        self._limits = limits
        self._process: ChildProcess | None = None
        self._closed = False

    def run(self, constraint: Constraint) -> Answer:
        """Return the grammar of `constraint` and the memory that compiling it took.

        Raises `UnsupportedGrammar`, `GrammarTooSlow`, and `NotReady` if the process fails.
        """
        line = msgspec.json.encode(constraint) + b"\n"
        # If the process was killed between two compiles, this constraint is not at fault.
        answer = self._ask(line) or self._ask(line)
        if answer is None:
            raise NotReady("The process that compiles grammars was killed twice. Try again.")
        if answer.unavailable:
            raise NotReady(answer.unavailable)
        if answer.too_slow:
            self._raise_too_slow()
        if not answer.grammar:
            raise UnsupportedGrammar(answer.refused, answer.keyword)
        return answer

    def close(self) -> None:
        """End the process, even during a compile; any thread may call this."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()

    def stop(self) -> None:
        """End the process and reap it, once nothing runs."""
        self.close()
        if self._process is not None:
            self._process.stop()

    def _ask(self, line: bytes) -> Answer | None:
        """Return the answer; None if the process has died."""
        seconds = self._limits.seconds + _SPARE_SECONDS
        unsent = b""
        if self._process is None or self._process.is_stopped:
            self._process = ChildProcess(_COMMAND, in_background=True)
            unsent, seconds = self._settings, seconds + _START_SECONDS
        process = self._process
        if self._closed:  # checked after the start: `close` may have missed the new process
            process.stop()
            raise NotReady("The server is shutting down.")
        patience = Patience(seconds)
        try:
            process.send(unsent + line, patience)
            (size,) = HEAD.unpack(process.receive(HEAD.size, patience))
            return msgspec.json.decode(process.receive(size, patience), type=Answer)
        except TooLate:
            process.stop()
            self._raise_too_slow()
        except Ended:
            process.stop()
            return None

    def _raise_too_slow(self) -> NoReturn:
        raise GrammarTooSlow(
            f"compiling the constraint takes more than {self._limits.cpu_seconds:g} s; simplify the constraint"
        )
