"""A tokenizer in a child process, for tokenizer files that do not bound its time or memory."""

import json
from collections.abc import Sequence

import msgspec
from numaserve.server.confined.worker import (
    CPU_SECONDS,
    SECONDS,
    BeyondLimits,
    ConfinedWorker,
    WorkerUnavailable,
    WorkFailed,
)
from numaserve.server.tokenizer.types import TextBeyondLimits, TokenizationError, TokenizerUnavailable

_MAX_BYTES = 64 * 2**20  # of an answer: the ids of some million tokens
_MEMORY_BYTES = 2 * 2**30  # a tokenizer.json of 35 MB needs a quarter
_LOAD_CPU_SECONDS = 20.0


class ConfinedTokenizer:
    """A tokenizer and its child process. Thread-safe; calls run one at a time.

    It costs some tenths of a millisecond per text more than the library in this process. Tokenizers whose steps are all
    known to be bounded therefore run in this process.
    """

    def __init__(self, definition: str, *, cpu_seconds: float = CPU_SECONDS, seconds: float = SECONDS) -> None:
        """Start the process. `definition` is the text of a tokenizer.json."""
        self._worker = ConfinedWorker(
            "the tokenizer",
            "numaserve.server.tokenizer.process",
            {"definition": definition},
            max_bytes=_MAX_BYTES,
            cpu_seconds=cpu_seconds,
            seconds=seconds,
            make_cpu_seconds=_LOAD_CPU_SECONDS,
            memory_bytes=_MEMORY_BYTES,
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`. Raises as `Tokenizer.encode` does."""
        # Only the standard library's JSON encoder writes lone surrogates.
        ids = self._ask(json.dumps({"text": text, "add_special_tokens": add_special_tokens}).encode())
        return msgspec.json.decode(ids, type=list[int])

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of `token_ids`. Raises as `Tokenizer.decode` does."""
        return self._ask(
            msgspec.json.encode({"token_ids": list(token_ids), "skip_special_tokens": skip_special_tokens})
        )

    def close(self) -> None:
        """End the process, even while it works on a text."""
        self._worker.close()

    def _ask(self, piece: bytes) -> str:
        try:
            return self._worker.ask(piece)
        except BeyondLimits as error:
            raise TextBeyondLimits(str(error)) from error
        except WorkFailed as error:
            raise TokenizationError(str(error)) from error
        except WorkerUnavailable as error:
            raise TokenizerUnavailable(str(error)) from error
