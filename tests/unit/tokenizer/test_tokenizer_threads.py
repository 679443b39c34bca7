import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import tokenizers
from numaserve.server.tokenizer import Tokenizer, load_tokenizer

from tests.support.tokenizer_builders import SAMPLES, byte_level_backend, demo_gguf, sentencepiece_backend, wrap


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return load_tokenizer(demo_gguf())


def turns_of_others(work: Callable[[], object]) -> int:
    """How often another thread gets the interpreter while `work` runs."""
    begun, done = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        work()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    turns = 0
    while not done.is_set():
        turns += 1
        time.sleep(0.001)
    thread.join()
    return turns


def test_other_threads_run_while_a_text_is_tokenized_and_put_together(demo: Tokenizer) -> None:
    text = "".join(SAMPLES) * 2000
    assert turns_of_others(lambda: demo.encode(text)) > 10
    tokens = demo.encode(text)
    assert turns_of_others(lambda: demo.decode(tokens)) > 5


def test_tokenizing_starts_no_threads() -> None:
    code = (
        "import os, sys; from pathlib import Path; from numaserve.server.tokenizer import load_tokenizer\n"
        "tokenizer = load_tokenizer(Path(sys.argv[1])); before = len(os.listdir('/proc/self/task'))\n"
        "tokenizer.decode(tokenizer.encode('one two three')); sys.exit(len(os.listdir('/proc/self/task')) - before)"
    )
    subprocess.run([sys.executable, "-c", code, str(demo_gguf())], check=True, timeout=60)


@pytest.mark.parametrize("build", [byte_level_backend, sentencepiece_backend])
@pytest.mark.parametrize("special", [True, False])
def test_tokens_are_those_that_the_library_gives_for_a_single_text(
    build: Callable[[], tokenizers.Tokenizer], *, special: bool
) -> None:
    library = build()
    tokenizer = wrap(library)
    for text in (*SAMPLES, "".join(SAMPLES), "<s>a</s> b"):
        tokens = tokenizer.encode(text, add_special_tokens=special)
        assert tokens == library.encode(text, add_special_tokens=special).ids
        assert tokenizer.decode(tokens, skip_special_tokens=special) == library.decode(
            tokens, skip_special_tokens=special
        )
