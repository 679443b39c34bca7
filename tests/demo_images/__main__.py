"""``python -m tests.demo_images``: a server that reads squares of colours, without and with faults.

It writes the checkpoint of `checkpoint.py` into `build/demo-images`. On one rank and on two, it asks for the colours of
two squares, and asks again after a worker has been killed. Two earlier turns of the conversation show what to answer.
The exit status is 1 where an answer is not the colours in their order, where a repeated prompt finds nothing in the
cache, or where it runs the vision tower again.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import numaserve
import psutil
import transformers as hf
from prometheus_client.parser import text_string_to_metric_families

from tests.demo_images.checkpoint import square, written
from tests.support.image_files import image_part, in_file
from tests.support.tree_server import TreeServer

_SHOWN = (("black", "white"), ("green", "yellow"))
_ASKED = (("red", "blue"), ("blue", "red"))
_PATIENCE_S = 120.0


def main() -> int:
    """Print each answer, and return the exit status."""
    hf.utils.logging.disable_progress_bar()
    folder = written()
    print("| ranks | squares | answer | cached tokens | tower seconds |", flush=True)
    print("|---|---|---|---|---|")
    verdicts = [_demonstrate(folder, tp) for tp in (1, 2)]
    return int(not all(verdicts))


def _demonstrate(folder: Path, tp: int) -> bool:
    options = (str(folder), "--tp", str(tp), "--weights-cache-gib", "0", "--kv-cache-gib", "1")
    with TreeServer(_import_root(), Path(tempfile.mkdtemp(prefix="di-")), options) as server:
        good = [_ask(server, tp, colours) for colours in _ASKED]
        repeated = _ask(server, tp, _ASKED[0], is_repeated=True)
        _kill_a_worker(server)
        good += [_ask(server, tp, _ASKED[0]), _ask(server, tp, _ASKED[0], is_repeated=True)]
        return all([*good, repeated])


def _kill_a_worker(server: TreeServer) -> None:
    children = psutil.Process(server.process.pid).children(recursive=True)
    worker = next(each for each in children if "numaserve.workers.process.main" in each.cmdline())
    os.kill(worker.pid, signal.SIGKILL)
    print("| a worker was killed |  |  |  |  |", flush=True)


def _import_root() -> Path:
    return Path(next(iter(numaserve.__path__))).parent


def _ask(server: TreeServer, tp: int, colours: tuple[str, str], *, is_repeated: bool = False) -> bool:
    before = _tower_seconds(server)
    body = {"messages": _messages(colours), "max_tokens": 8, "temperature": 0}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=_PATIENCE_S).raise_for_status().json()
    answer, cached = reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    seconds = max(0.0, _tower_seconds(server) - before)
    print(f"| {tp} | {' '.join(colours)} | {answer} | {cached} | {seconds:.3f} |", flush=True)
    return answer == " ".join(colours) and not (is_repeated and (seconds or not cached))


def _messages(colours: tuple[str, str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Copy the words."}]
    for pair in _SHOWN:
        messages += [{"role": "user", "content": _images(pair)}, {"role": "assistant", "content": " ".join(pair)}]
    return [*messages, {"role": "user", "content": _images(colours)}]


def _images(colours: tuple[str, str]) -> list[dict[str, Any]]:
    return [image_part(in_file(square(colour, size=300))) for colour in colours]


def _tower_seconds(server: TreeServer) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return sum(each.value for each in samples if each.name == "numaserve_vision_tower_seconds_total")


if __name__ == "__main__":
    sys.exit(main())
