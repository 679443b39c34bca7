"""The process that loads one tokenizer and its tables for constraints within limits, and reports the result.

`TokenizerCheck` starts the process. It is bounded, but not confined as processes for templates are: it runs the library
that the server itself is about to run on the same file.
"""

import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
from numaserve.server.confined.confinement import ignore_ends_of_the_group, silence_errors
from numaserve.server.service.checks.tokenizer_check import ANSWER_SIZE, Subject
from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.tokenizer import Tokenizer
from numaserve.server.tokenizer.types import TokenizerError
from numaserve.workers.interface.errors import OperatorError

# Some tokens of tokenizers have no logits in their models: one for images in Gemma 3, some for padding in fine-tunes.
# Requests never use such tokens.
_MOST_BEYOND = 1024


def _bound(subject: Subject) -> None:
    """Limit the memory and processor time of this process from here on."""
    # Not RLIMIT_AS: a GGUF file is mapped whole, whatever its size.
    resource.setrlimit(resource.RLIMIT_DATA, (subject.limits.memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, subject.limits.cpu_seconds)
    silence_errors()


def _compare(tokenizer: Tokenizer, model: str, vocab_size: int) -> None:
    """Compare the tokenizer's ids with the model's logits. Raises `TokenizerError`."""
    most = vocab_size + _MOST_BEYOND
    if tokenizer.vocab_size > most:
        raise TokenizerError(
            f"the tokenizer of {model} cannot be used: its largest id is {tokenizer.vocab_size - 1}, and the model "
            f"has {vocab_size} tokens (largest id allowed: {most - 1}). Download the tokenizer and the "
            "model from the same source"
        )


def _make_tables(tokenizer: Tokenizer, vocab_size: int) -> None:
    from numaserve.server.structured.vocabulary import Vocabulary  # noqa: PLC0415 the server waits for the tokenizer

    vocabulary = Vocabulary.of(tokenizer, vocab_size)
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
        tokenizer = load_tokenizer(Path(subject.model), chat_template="")  # the template has a process of its own
        size = sys.stdin.buffer.readline()
        if not size:
            return  # the server ended because of an error in the model's configuration
        vocab_size = int(size)
        _compare(tokenizer, subject.model, vocab_size)
    except OperatorError as error:
        _answer(str(error))
        return
    _answer()
    _make_tables(tokenizer, vocab_size)
    _answer()


if __name__ == "__main__":
    main()
