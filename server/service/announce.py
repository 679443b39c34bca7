"""The line that ends the start: the place of the server, and a command to try it with."""

import json
import shlex
import sys

from numaserve.server.service.listen import Listener


def announce(name: str, listener: Listener, *, needs_key: bool) -> None:
    """Write the line to standard output, which holds nothing else."""
    messages = [{"role": "user", "content": "Name the capital of France."}]
    body = {"model": name, "messages": messages, "temperature": 0}
    words = ["curl", *listener.curl, f"{listener.url}/v1/chat/completions"]
    if needs_key:
        words += ["-H", "Authorization: Bearer YOUR-KEY"]
    words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    sys.stdout.write(f"{name} is served at {listener.place} - try: {shlex.join(words)}\n")
    sys.stdout.flush()
