"""What the scripts in Python share: their setting, and how the outcome of a check is told. Needs no package.

The first argument is a JSON object: `urls` of the servers, the `model` they serve, the folders `tokenizer` (the
model's, as Hugging Face keeps one), `squares` (an image file of each colour, see `tests.demo_images`), `bin` (the
environment's commands) and `scratch` (empty, to write to). A line of standard output reports the outcome of a check.
"""

import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SETTING: dict[str, Any] = json.loads(sys.argv[1])
URL: str = SETTING["urls"][0]
MODEL: str = SETTING["model"]
TOKENIZER: str = SETTING["tokenizer"]
SCRATCH = Path(SETTING["scratch"])
BIN = Path(SETTING["bin"])

QUESTION = "Name the capital of France."
ANSWER = "Paris"


# A tool and an answer that even a small model writes well, as there is nothing in them without an end.
LOOK_UP = {
    "name": "look_up",
    "description": "Finds the capital of a country.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string", "enum": ["France", "Spain"]}},
        "required": ["place"],
        "additionalProperties": False,
    },
}


def check(name: str) -> Callable[[Callable[[], None]], None]:
    """Run what is decorated at once; what it raises is the check's failure."""

    def run(body: Callable[[], None]) -> None:
        failure = None
        try:
            body()
        except Exception as error:
            traceback.print_exc()
            failure = f"{type(error).__name__}: {error}"
        print(json.dumps({"check": name, "failure": failure}), flush=True)

    return run


def expect(kind: type[Exception], request: Callable[[], object], *words: str) -> None:
    """`request` must raise `kind`, and say `words`."""
    try:
        request()
    except kind as error:
        assert all(word in str(error) for word in words), f"the error says {error}"
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def user(text: str = QUESTION) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": text}


def command(*arguments: str) -> None:
    """Run a command of this environment to its end; its output goes to standard error."""
    ended = subprocess.run([str(BIN / arguments[0]), *arguments[1:]], check=False, stdout=sys.stderr, cwd=SCRATCH)
    assert ended.returncode == 0, f"{arguments[0]} ended with status {ended.returncode}"
