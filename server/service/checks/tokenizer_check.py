"""The check of a model's tokenizer in a separate process, before the server loads the tokenizer.

A tokenizer.json determines the memory and time of its own loading. An id of 2**31 creates a table of as many rows;
400,000 added tokens hold the GIL for minutes. Bounds on ids alone were rejected: a config.json with a false vocabulary
size would lift them.
"""

from __future__ import annotations

import signal
import struct
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec
from numaserve.server.common.patience import Patience
from numaserve.server.confined.child_process import ChildProcess, Ended, TooLate
from numaserve.server.tokenizer.types import TokenizerError
from numaserve.workers.interface.python_process import module_command

# The length in bytes of the UTF-8 error message that follows; 0 on success. The process sends one answer for the
# tokenizer, and one for its tables.
ANSWER_SIZE = struct.Struct("<Q")

_COMMAND = module_command("numaserve.server.service.checks.tokenizer_check_process")


class CheckLimits(msgspec.Struct, frozen=True):
    """The bounds on the loading of a tokenizer."""

    cpu_seconds: float = 30.0  # vocabularies of 262,144 tokens take 3 s
    seconds: float = 120.0  # wall time: several times the processor time, for a machine whose cores are all busy
    memory_bytes: int = 3 * 2**30  # a tokenizer.json of 35 MB takes a sixth of it


class Subject(msgspec.Struct, frozen=True):
    """The first line that the process reads. The second line is the model's number of logits."""

    model: str
    limits: CheckLimits


class TokenizerCheck:
    """The process that loads one tokenizer and ends.

    The process loads the tokenizer while the server imports its modules and reads the model's configuration.
    """

    def __init__(self, model: Path, limits: CheckLimits | None = None) -> None:
        """Start the process, which loads the tokenizer of the model at `model`."""
        self._model = model
        self._limits = limits or CheckLimits()
        self._patience = Patience(self._limits.seconds)
        self._process = ChildProcess(_COMMAND)
        with suppress(Ended, TooLate):  # found when the answer is read
            self._process.send(msgspec.json.encode(Subject(str(model), self._limits)) + b"\n", self._patience)

    def wait_until_loaded(self, vocab_size: int) -> None:
        """Wait until the process has loaded the tokenizer and compared its ids with the model's `vocab_size` logits.

        The server may then load the tokenizer, while the process makes the tables for constraints. Raises
        `TokenizerError` for a tokenizer that fails the check.
        """
        with suppress(Ended, TooLate):  # found when the answer is read
            self._process.send(b"%d\n" % vocab_size, self._patience)
        self._read_answer()

    def finish(self) -> None:
        """Wait until the tables are made, and end the process. Raises `TokenizerError` if that fails."""
        self._read_answer()
        self.close()

    def _read_answer(self) -> None:
        try:
            (size,) = ANSWER_SIZE.unpack(self._process.receive(ANSWER_SIZE.size, self._patience))
            complaint = self._process.receive(size, self._patience).decode()
        except TooLate:
            self._refuse(f"loading the tokenizer did not finish within {self._limits.seconds:g} s")
        except Ended:
            self._process.stop()
            self._refuse(self._reason_of_its_end())
        if complaint:
            raise TokenizerError(complaint)

    def close(self) -> None:
        """End the process. May be called twice."""
        self._process.stop()

    def __enter__(self) -> TokenizerCheck:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reason_of_its_end(self) -> str:
        if self._process.returncode == -signal.SIGPROF:
            return f"loading the tokenizer took more than {self._limits.cpu_seconds:g} s of processor time"
        mebibytes = self._limits.memory_bytes >> 20
        return f"loading the tokenizer crashed the process or took more than {mebibytes} MiB of memory"

    def _refuse(self, reason: str) -> NoReturn:
        raise TokenizerError(f"the tokenizer of {self._model} cannot be used: {reason}. Use another copy of the model")


def check_tokenizer(model: Path, vocab_size: int, limits: CheckLimits | None = None) -> None:
    """Raise `TokenizerError` unless the tokenizer of the model at `model`, with `vocab_size` logits, is sound."""
    with TokenizerCheck(model, limits) as check:
        check.wait_until_loaded(vocab_size)
        check.finish()
