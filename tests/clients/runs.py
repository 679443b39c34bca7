"""One client before running servers: its script's outcome, check by check."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.clients.known_clients import BOTH_SERVERS, SCRIPT, Client
from tests.clients.servers import Server

RUN_SECONDS = 900.0

Outcome = dict[str, list[str]]  # failures by check; a check may be made several times


def run_client(
    client: Client, command: Sequence[str], servers: Sequence[Server], urls: Sequence[str], folders: Mapping[str, Path]
) -> Outcome:
    """Run the script of `client` with `command` before `servers`, which it reaches at `urls`.

    `folders` are a part of the script's setting.
    """
    before = [_answered(server) for server in servers]
    told = {name: str(path) for name, path in folders.items()}
    outcome = _run_script(command, {"urls": list(urls), "model": servers[0].model, **told})
    if client.routes:
        idle = [server.url for server, count in zip(servers, before, strict=True) if _answered(server) == count]
        outcome[BOTH_SERVERS] = [f"{url} answered no request" for url in idle]
    return outcome


def _run_script(command: Sequence[str], setting: dict[str, object]) -> Outcome:
    # In a home and a group of processes of its own, so that nothing is left of either.
    with tempfile.TemporaryDirectory(prefix="ns-client-", ignore_cleanup_errors=True) as scratch:
        process = subprocess.Popen(
            [*command, json.dumps(setting | {"scratch": scratch})],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=_environment(scratch),
            cwd=scratch,
            start_new_session=True,
        )
        late = False
        try:
            said, _ = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if late:
            said, _ = process.communicate()
    outcome = _outcome(said.decode())
    if late or process.returncode != 0:
        reason = f"not done after {RUN_SECONDS:.0f} s" if late else f"the script ended with {process.returncode}"
        outcome[SCRIPT] = [reason]
    return outcome


def _environment(home: str) -> dict[str, str]:
    # Nothing of this process's own packages, keys and proxies, and nothing left in the user's folders.
    dropped = ("OPENAI_", "ANTHROPIC_", "OLLAMA_", "PYTHONPATH", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    folders = {"HOME": home, "XDG_CACHE_HOME": f"{home}/cache", "TMPDIR": home}
    return kept | folders | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def _outcome(said: str) -> Outcome:
    outcome: Outcome = {}
    for line in said.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            told = json.loads(line)
            failures = outcome.setdefault(told["check"], [])
            if told["failure"] is not None:
                failures.append(told["failure"])
            continue
        print(line, file=sys.stderr)
    return outcome


def _answered(server: Server) -> float:
    samples = ((name.split(), value) for name, value in server.metrics().items())
    reasons = {"stop", "length"}
    return sum(value for (name, *labels), value in samples if name == "request_outcomes_total" and reasons & {*labels})
