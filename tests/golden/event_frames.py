"""The KV events of a server, frame by frame, read with MessagePack and ZeroMQ alone."""

import json
import time
from typing import Any

import msgspec
import zmq

_END = (-1).to_bytes(8, "big", signed=True)
_PATIENCE_MS = 20_000


class EventFrames:
    """The events that a server publishes, and those that it repeats on request."""

    def __init__(self, events: str, replay: str) -> None:
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.subscribe("")
        self._live.connect(events)
        self._again = self._context.socket(zmq.DEALER)
        self._again.connect(replay)
        self._wait_for_connection()

    def _wait_for_connection(self) -> None:
        """Wait until the server takes requests for events; a subscription made earlier is then in place too."""
        self._replayed()
        time.sleep(0.5)

    def text(self) -> str:
        """Return the published frames and the repeated ones as lines of JSON."""
        live = []
        while self._live.poll(500):
            live.append(self._live.recv_multipart())
        lines = [json.dumps({"topic": topic.decode(), "frames": 3}) for topic in sorted({each[0] for each in live})]
        lines += ["published:", *_flat(frame[2] for frame in live)]
        lines += ["replayed:", *_flat(self._replayed())]
        return "\n".join(lines)

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)

    def _replayed(self) -> list[bytes]:
        self._again.send_multipart([b"", (0).to_bytes(8, "big")])
        payloads = []
        while True:
            if not self._again.poll(_PATIENCE_MS):
                raise RuntimeError("the server repeats no KV events")
            *_, number, payload = self._again.recv_multipart()
            if number == _END:
                return payloads
            payloads.append(payload)


def _flat(payloads: Any) -> list[str]:
    """Return the events in order, each a line; the batches that hold them depend on time."""
    lines, shapes = [], set()
    for payload in payloads:
        _, events, *rest = msgspec.msgpack.decode(payload)
        shapes.add(json.dumps(["TIME", "EVENTS", *rest]))
        lines += [json.dumps(event) for event in events]
    return [*sorted(shapes), *lines]
