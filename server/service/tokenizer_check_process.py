"""Loads one tokenizer within limits, with the tables for constraints, and tells whether that went well.

Started by `TokenizerCheck`. It is bounded, but not confined as processes for templates are: it runs the library that
the server itself is about to run on the same file.
"""

import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
from numaserve.server.confinement import ignore_ends_of_the_group, silence_errors
from numaserve.server.service.tokenizer_check import ANSWER_SIZE, Subject
from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.tokenizer import Tokenizer
from numaserve.server.tokenizer.types import TokenizerError
from numaserve.workers.errors import OperatorError

# Tokenizers have tokens that their models have no logits for: Gemma 3 one for images, fine-tunes some for padding.
# Requests never use such tokens.
_MOST_BEYOND = 1024


def _bound(subject: Subject) -> None:
    """Bound what this process may take from here on."""
    # Not RLIMIT_AS: a GGUF file is mapped whole, whatever its size.
    resource.setrlimit(resource.RLIMIT_DATA, (subject.limits.memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, subject.limits.cpu_seconds)
    silence_errors()


def _loaded(subject: Subject) -> Tokenizer:
    """The tokenizer. Raises `TokenizerError`."""
    model = Path(subject.model)
    tokenizer = load_tokenizer(model, chat_template="")  # the template has a process of its own
    most = subject.vocab_size + _MOST_BEYOND
    if tokenizer.vocab_size > most:
        raise TokenizerError(
            f"the tokenizer of {model} cannot be used: its largest id is {tokenizer.vocab_size - 1}, and the model "
            f"has {subject.vocab_size} tokens (largest id allowed: {most - 1}). Download the tokenizer and the "
            "model from the same source"
        )
    return tokenizer


def _make_tables(tokenizer: Tokenizer, subject: Subject) -> None:
    from numaserve.server.structured.vocabulary import Vocabulary  # noqa: PLC0415 the server waits for the tokenizer

    vocabulary = Vocabulary.of(tokenizer, subject.vocab_size)
    with suppress(ValueError):  # a tokenizer without an end of texts serves all but constraints
        vocabulary.load()


def _answer(complaint: str = "") -> None:
    data = complaint.encode(errors="replace")
    sys.stdout.buffer.write(ANSWER_SIZE.pack(len(data)) + data)
    sys.stdout.buffer.flush()


def main() -> None:
    """Check one tokenizer."""
    ignore_ends_of_the_group()
    line = sys.stdin.buffer.readline()
    if not line:
        return  # the server ended before it found the model
    subject = msgspec.json.decode(line, type=Subject)
    _bound(subject)
    try:
        tokenizer = _loaded(subject)
    except OperatorError as error:
        _answer(str(error))
        return
    _answer()
    _make_tables(tokenizer, subject)
    _answer()


if __name__ == "__main__":
    main()
