"""Runs servers and commands of a tree, two at a time, and writes what they answer."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from tests.golden.cases import Body, Case, Command, Entry, Served
from tests.golden.normalise import normalise, normalise_metrics, without_numbers
from tests.golden.server_process import ServerProcess
from tests.support.tree_server import environment_of

Work = Served | Command
_HEADERS = (
    *("content-type", "retry-after", "www-authenticate", "allow", "cache-control", "x-accel-buffering", "location"),
    *("access-control", "x-numaserve", "x-ratelimit-limit", "x-ratelimit-remaining", "vary"),
)
_ROUTES = {"/metrics": normalise_metrics, "/machine": without_numbers}
_PATIENCE_S = 120
_log = logging.getLogger(__name__)


class Recording:
    """The entries of each piece of work, in the order of the work."""

    def __init__(self, root: Path, models: Path) -> None:
        self._root, self._models = root, models
        self._bytecode = Path()
        self._entries: dict[int, list[Entry]] = {}
        self._failures: list[Exception] = []

    def run(self, works: Sequence[Work]) -> list[Entry]:
        """Return the entries of `works`. Raises `ExceptionGroup` with what pieces of work have raised."""
        pending: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()
        for item in enumerate(works):
            pending.put(item)
        with tempfile.TemporaryDirectory(prefix="ng-") as folder:
            self._bytecode = Path(folder)
            self._run_lanes(pending)
        if self._failures:
            raise ExceptionGroup("the record is incomplete", self._failures)
        return [entry for index in range(len(works)) for entry in self._entries[index]]

    def _run_lanes(self, pending: queue.SimpleQueue[tuple[int, Work]]) -> None:
        lanes = [threading.Thread(target=self._work_off, args=(pending, cpus)) for cpus in _lanes()]
        for each in lanes:
            each.start()
        try:
            for each in lanes:
                each.join()
        except BaseException:  # an interrupt: the lanes end after the servers that run
            with contextlib.suppress(queue.Empty):
                while True:
                    pending.get_nowait()
            raise

    def _work_off(self, pending: queue.SimpleQueue[tuple[int, Work]], cpus: set[int]) -> None:
        while True:
            try:
                index, work = pending.get_nowait()
            except queue.Empty:
                return
            begin = time.monotonic()
            try:
                self._entries[index] = self._command(work) if isinstance(work, Command) else self._served(work, cpus)
            except Exception as error:
                error.add_note(work.name)
                self._failures.append(error)
                _log.error("%s: %s", work.name, error)
            _log.info("%s: %.1f s", work.name, time.monotonic() - begin)

    def _command(self, command: Command) -> list[Entry]:
        with tempfile.TemporaryDirectory(prefix="ng-") as name:
            folder = Path(name)
            arguments = [each.format(models=self._models) for each in command.arguments]
            done = subprocess.run(
                [sys.executable, "-m", "numaserve", *arguments],
                capture_output=True,
                text=True,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                env=environment_of(self._root, folder, self._bytecode),
                check=False,
                timeout=_PATIENCE_S,
            )
            text = normalise(done.stdout + done.stderr, folders=self._folders(folder))
        return [Entry(command.name, " ".join(command.arguments), done.returncode, {}, text)]

    def _served(self, served: Served, cpus: set[int]) -> list[Entry]:
        cpus = cpus if served.ranks == 1 and served.model else os.sched_getaffinity(0)
        with (
            ServerProcess(served, self._root, self._models, self._bytecode, cpus) as server,
            httpx.Client(base_url=server.url, timeout=_PATIENCE_S) as client,
        ):
            folders = self._folders(server.folder)
            taken: dict[str, str] = {}
            entries = [_ask(client, served, case, taken, folders) for case in served.cases]
            if server.frames is not None:
                text = normalise(server.frames.text(), folders=folders)
                entries.append(Entry(f"{served.name}: KV events", "", 0, {}, text))
        return entries

    def _folders(self, folder: Path) -> dict[str, str]:
        return {str(self._models): "MODELS", str(folder): "FOLDER", str(self._root): "ROOT"}


def _ask(client: httpx.Client, served: Served, case: Case, taken: dict[str, str], folders: dict[str, str]) -> Entry:
    content, headers = _content(case.body, taken)
    path = _filled(case.path, taken)
    answer = client.request(case.verb, path, content=content, headers=headers | case.headers)
    for name, pattern in case.take.items():
        found = re.search(pattern, answer.text)
        taken[name] = found[1] if found else f"no {name}"
    text = _ROUTES.get(path, str)(answer.content.decode("utf-8", "backslashreplace"))
    text = normalise(text, folders=folders, loose=served.loose)
    kept = {key: value for key, value in sorted(answer.headers.items()) if key.startswith(_HEADERS)}
    kept |= {"retry-after": "SECONDS"} if "retry-after" in kept else {}
    shown = "" if content is None else content[:2000].decode("utf-8", "backslashreplace")
    request = normalise(f"{case.verb} {path} {shown}", folders=folders)
    return Entry(f"{served.name}: {case.name}", request, answer.status_code, kept, text)


def _content(body: Body, taken: dict[str, str]) -> tuple[bytes | None, dict[str, str]]:
    if body is None:
        return None, {}
    if isinstance(body, bytes):
        return body, {"content-type": "application/json"}
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return _filled(text, taken).encode(), {"content-type": "application/json"}


def _filled(text: str, taken: dict[str, str]) -> str:
    for name, value in taken.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def _lanes() -> list[set[int]]:
    """Return the processors of each of two servers that run at the same time; spinning threads would meet otherwise."""
    cpus = sorted(os.sched_getaffinity(0))
    return [{cpus[0]}, {cpus[1]}] if len(cpus) > 1 else [{cpus[0]}]


def check_root(root: Path) -> None:
    """Raise `RuntimeError` unless a process with `root` in front imports the tree there."""
    with tempfile.TemporaryDirectory(prefix="ng-") as name:
        code = "import importlib.util as u; print(u.find_spec('numaserve.server').origin)"
        environment = environment_of(root, Path(name), Path(name))
        found = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=name, env=environment).strip()
    if not found.startswith(f"{root}{os.sep}"):
        raise RuntimeError(f"the tree at {root} is not imported, but {found}")


def write(entries: Iterable[Entry], file: Path) -> None:
    """Write a record."""
    file.write_text("".join(json.dumps(asdict(entry), ensure_ascii=False) + "\n" for entry in entries))


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of a record by name."""
    lines = [json.loads(line) for line in file.read_text().split("\n") if line]
    found = {line["name"]: line for line in lines}
    if len(found) != len(lines):
        raise ValueError(f"{file}: {len(lines) - len(found)} cases have the name of another one")
    return found
