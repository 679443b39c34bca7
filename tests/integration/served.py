"""What tests ask of the serve command's process."""

import subprocess
from collections.abc import Callable

Serve = Callable[..., subprocess.Popen[str]]


def announced_url(process: subprocess.Popen[str]) -> str:
    """Wait for the line that ends the start."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert " is served at " in line
    return line.split(" is served at ")[1].split()[0]


def completion(count: int, **more: object) -> dict[str, object]:
    return {"model": "tiny-model", "prompt": [11, 12, 13], "max_tokens": count, "ignore_eos": True, **more}
