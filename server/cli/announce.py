"""The line that ends the start: where the model is served, and a command to try it with."""

from __future__ import annotations

import json
import shlex
import sys


def announce(name: str, url: str, *, needs_key: bool) -> None:
    """Write the line to standard output, which holds nothing else."""
    messages = [{"role": "user", "content": "Name the capital of France."}]
    body = {"model": name, "messages": messages, "temperature": 0}
    words = ["curl", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    if needs_key:
        words[2:2] = ["-H", "Authorization: Bearer YOUR-KEY"]
    sys.stdout.write(f"{name} is served at {url} - try: {shlex.join(words)}\n")
    sys.stdout.flush()
