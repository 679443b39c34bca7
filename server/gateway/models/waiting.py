"""The queue of requests that wait for models to be loaded, bounded in number and bytes over all models, and in time."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import aiohttp
from numaserve.server.engine.admission.reserve import reserve_of
from numaserve.server.http.errors import ApiError, not_ready, rate_limited

MAX_WAITING = 1024
MAX_BYTES = 64 << 20  # of request bodies

Place = asyncio.Future[aiohttp.ClientSession]


class WaitingRoom:
    """The waiting requests, by model.

    A reserve beyond both bounds is open to clients that have no waiting request, so that one client's flood cannot keep
    other clients out. All requests that wait for a model are admitted together; the model process then divides its work
    among clients.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._places: dict[str, list[Place]] = {name: [] for name in names}
        self._clients: Counter[bytes] = Counter()
        self._bytes = 0

    def count(self, name: str) -> int:
        """Return the number of requests that wait for a model."""
        return len(self._places[name])

    @contextmanager
    def place(self, name: str, client: bytes, nbytes: int) -> Iterator[Place]:
        """Queue a client's request with a body of `nbytes`; the future is resolved with the model's session.

        Raises `ApiError` if the queue is full.
        """
        is_new = client not in self._clients
        most, most_bytes = MAX_WAITING + is_new * reserve_of(MAX_WAITING), MAX_BYTES + is_new * reserve_of(MAX_BYTES)
        if self._clients.total() >= most or self._bytes + nbytes > most_bytes:
            raise rate_limited(
                f"The queue for models that are loading is full: {self._clients.total()} requests "
                f"with {self._bytes} bytes are waiting (limits {most} and {most_bytes}). Retry later."
            )
        place: Place = asyncio.get_running_loop().create_future()
        self._places[name].append(place)
        self._bytes += nbytes
        self._clients[client] += 1
        try:
            yield place
        finally:
            self._bytes -= nbytes
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]
            if place in self._places[name]:
                self._places[name].remove(place)

    def let_in(self, name: str, session: aiohttp.ClientSession) -> int:
        """Give all requests that wait for a model its session. Returns the number of requests."""
        places = [each for each in self._empty(name) if not each.done()]
        for place in places:
            place.set_result(session)
        return len(places)

    def refuse(self, name: str, message: str) -> None:
        """Refuse all requests that wait for a model."""
        for place in self._empty(name):
            if not place.done():
                place.set_exception(not_ready(message))

    def _empty(self, name: str) -> list[Place]:
        places, self._places[name] = self._places[name], []
        return places


def not_loadable(name: str) -> str:
    """Return the message for a model that has failed."""
    return f"The model '{name}' could not be loaded. See the server log."


def too_late(name: str, *, at_request: bool) -> ApiError:
    """Return the error for a model that was not loaded in time; `at_request`: in the time that the request allowed."""
    message = f"The model '{name}' was not loaded in time. Retry later."
    if at_request:
        return ApiError(504, message, kind="timeout_error", code="deadline_exceeded", refusal=None)
    return not_ready(message)
