"""The process that tokenizes and detokenizes until its input ends; `ConfinedTokenizer` starts it and bounds it."""

import os
from typing import Any

import msgspec
import tokenizers
from numaserve.server.confined.confinement import silence_errors
from numaserve.server.confined.work import Complaint, Work, serve
from numaserve.server.tokenizer.backend import decode, encode
from numaserve.server.tokenizer.types import TokenizationError


def _work(config: dict[str, Any]) -> Work:
    # The library would start one thread per core, which this process is not allowed to.
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
