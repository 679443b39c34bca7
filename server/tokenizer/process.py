"""Tokenizes texts, and joins tokens, until its input ends; started by `ConfinedTokenizer`, which bounds what it may
take."""

import os
from typing import Any

import msgspec
import tokenizers
from numaserve.server.confined.confinement import silence_errors
from numaserve.server.confined.work import Complaint, Work, serve
from numaserve.server.tokenizer.backend import decode, encode
from numaserve.server.tokenizer.types import TokenizationError


def _work(config: dict[str, Any]) -> Work:
    # The library would start a thread for each core, which this process must not.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    backend = tokenizers.Tokenizer.from_str(config["definition"])

    def work(piece: dict[str, Any]) -> str:
        try:
            if "text" in piece:
                return msgspec.json.encode(encode(backend, **piece)).decode()
            return decode(backend, **piece)
        except TokenizationError as error:
            raise Complaint(str(error)) from error

    return work


def main() -> None:
    """Serve texts until the input ends."""
    serve(silence_errors, _work)


if __name__ == "__main__":
    main()
