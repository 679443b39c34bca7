"""The line that ends the start: the server's address, and a command for a first request."""

import json
import shlex
import sys
from dataclasses import dataclass
from typing import Any

from numaserve.server.config.tasks import ROUTES, Task
from numaserve.server.connection.listen import Listener

_QUESTION = "Name the capital of France."
_STATEMENT = "Paris is the capital of France."


@dataclass(frozen=True)
class Example:
    """An example request that a model can answer: its path, and its body without the model's name."""

    path: str
    body: dict[str, Any]


_BODIES: dict[Task, dict[str, Any]] = {
    "generate": {"messages": [{"role": "user", "content": _QUESTION}], "temperature": 0},
    "embed": {"input": _STATEMENT},
    "sparse": {"inputs": _STATEMENT},
    "score": {"query": _QUESTION, "documents": [_STATEMENT, "Bread is made of flour."]},
    "classify": {"inputs": _STATEMENT},
}
_WITHOUT_TEMPLATE = Example(
    "/v1/completions", {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}
)


def example_for(task: Task, *, has_chat_template: bool) -> Example:
    """Return the example for a model; a model without a chat template can only complete text."""
    completes = task == "generate" and not has_chat_template
    return _WITHOUT_TEMPLATE if completes else Example(ROUTES[task], _BODIES[task])


def announce(name: str, listener: Listener, example: Example, *, needs_key: bool) -> None:
    """Write the line to standard output, which holds nothing else."""
    words = ["curl", *listener.curl, f"{listener.url}{example.path}"]
    if needs_key:
        words += ["-H", "Authorization: Bearer YOUR-KEY"]
    words += ["-H", "Content-Type: application/json", "-d", json.dumps({"model": name, **example.body})]
    sys.stdout.write(f"{name} is served at {listener.place} - try: {shlex.join(words)}\n")
    sys.stdout.flush()
