"""The metrics of all models together, and the gateway's own."""

import asyncio
import re
from collections.abc import Collection, Mapping
from typing import get_args

import aiohttp
from numaserve.server.gateway.models.residency import State
from numaserve.server.metrics.labels import REFUSALS, Refusal
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

STATES: tuple[State, ...] = get_args(State)
# Seconds; the weights of a large model may come from a disk for minutes.
_LOAD = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)
_SCRAPE_S = 5.0  # timeout of a model process, which is left out when it takes longer
_SAMPLE = re.compile(rb"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?P<labels>\{)?")
_LABEL = "model_name"
_IN_A_SAMPLE = f'{_LABEL}="'.encode()


class FleetMetrics:
    """The gateway's own metrics; `render` adds those of the models. Call it from the event loop."""

    def __init__(self, names: Collection[str]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._refusals = Counter(
            "numaserve_front_door_refusals_total",
            "Requests that the gateway refused before it passed them to a model process.",
            ("reason",),
            registry=self.registry,
        )
        self._states = Gauge(
            "numaserve_model_state",
            "1 for the current state of the model, 0 for the other states.",
            (_LABEL, "state"),
            registry=self.registry,
        )
        self._waiting = Gauge(
            "numaserve_model_waiting_requests",
            "Requests that wait until the model is loaded.",
            (_LABEL,),
            registry=self.registry,
        )
        self._load_seconds = Histogram(
            "numaserve_model_load_seconds",
            "Time from the start of the model process until the model is ready.",
            (_LABEL,),
            buckets=_LOAD,
            registry=self.registry,
        )
        self._deaths = Counter(
            "numaserve_model_server_deaths_total",
            "Unexpected ends of the model process.",
            (_LABEL,),
            registry=self.registry,
        )
        # Create all series now: rate() misses the first event of a series that appears with that event.
        for reason in REFUSALS:
            self._refusals.labels(reason)
        for name in names:
            self._load_seconds.labels(name)
            self._deaths.labels(name)
            self.changed(name, "unloaded")
            self.waiting(name, 0)

    def refused(self, reason: Refusal) -> None:
        """Count a request that the gateway refused."""
        self._refusals.labels(reason).inc()

    def changed(self, name: str, state: State) -> None:
        """Set the state of a model."""
        for each in STATES:
            self._states.labels(name, each).set(each == state)

    def waiting(self, name: str, count: int) -> None:
        """Set the number of requests that wait for a model."""
        self._waiting.labels(name).set(count)

    def loaded(self, name: str, seconds: float) -> None:
        """Count a model that has become ready."""
        self._load_seconds.labels(name).observe(seconds)

    def died(self, name: str) -> None:
        """Count an unexpected end of a model process."""
        self._deaths.labels(name).inc()

    async def render(self, sessions: Mapping[str, aiohttp.ClientSession]) -> tuple[bytes, str]:
        """Return these metrics and those of the model processes of `sessions` as Prometheus text, with its type."""
        texts = await asyncio.gather(*map(_scraped, sessions.values()))
        return merged(generate_latest(self.registry), dict(zip(sessions, texts, strict=True))), CONTENT_TYPE_PLAIN_0_0_4


def merged(own: bytes, others: Mapping[str, bytes]) -> bytes:
    """Return one text from several: each metric family once, every sample of `others` labelled with its model."""
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for model, text in ((None, own), *others.items()):
        label = None if model is None else _IN_A_SAMPLE + _escaped(model) + b'"'
        family = b""
        for line in text.splitlines():
            if line.startswith(b"# "):
                _, kind, family, _ = line.split(b" ", 3)
                if not any(each.startswith(b"# " + kind) for each in heads.setdefault(family, [])):
                    heads[family].append(line)
            elif line:
                samples.setdefault(family, []).append(line if label is None else _labelled(line, label))
    lines = (line for family, head in heads.items() for line in (*head, *samples.get(family, ())))
    return b"\n".join((*lines, b""))


def _labelled(line: bytes, label: bytes) -> bytes:
    """Return a sample with `label`, unchanged if it already names its model."""
    found = _SAMPLE.match(line)
    if found is None or _IN_A_SAMPLE in line:
        return line
    rest = line[found.end() :]
    return found["name"] + b"{" + label + (b"," if found["labels"] else b"}") + rest


def _escaped(text: str) -> bytes:
    return text.replace("\\", r"\\").replace('"', r"\"").encode()


async def _scraped(session: aiohttp.ClientSession) -> bytes:
    try:
        async with session.get("http://model/metrics", timeout=aiohttp.ClientTimeout(_SCRAPE_S)) as answer:
            return await answer.read() if answer.status == 200 else b""
    except (aiohttp.ClientError, TimeoutError):
        return b""  # the model process has just ended, or hangs
