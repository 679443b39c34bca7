"""The turns of clients at a shared resource."""


class FairClock:
    """Start-time fair queueing (Goyal et al. 1996): the client whose turn begins earliest is next.

    A turn lasts what it takes over the client's weight, and the client's next one begins at its end. The time is where
    the newest turn has begun: who has wanted nothing for a while begins then, and has saved up nothing.

    Only newcomers begin later than at that time, by what was taken since then over all weights: the end of everybody's
    turns on average. At the time itself those without end would hold up who is ahead of it; at the highest end they
    would wait for all others to come there, which one client of a small weight moves far away. A client that waits is
    therefore overtaken for a while only: the others' turns, and where newcomers begin, move on with each turn that it
    sees.
    """

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}  # of each client's last turn
        self._weights: dict[str, float] = {}
        self._all_weights: float | None = 0.0  # None: to be added up again
        self._time = 0.0
        self._newcomers_start = 0.0

    def enter(self, client: str, weight: float) -> None:
        """Take in a client, or another weight of one that is there."""
        self._ends.setdefault(client, self._newcomers_start)
        self._weights[client] = weight
        self._all_weights = None

    def leave(self, client: str) -> None:
        """Forget a client."""
        del self._ends[client], self._weights[client]
        self._all_weights = None

    def start(self, client: str) -> float:
        """The beginning of a client's next turn, were it next."""
        return max(self._time, self._ends[client])

    def took(self, client: str, amount: float) -> None:
        """Count the turn that a client has had."""
        self._time = self.start(client)
        self._ends[client] = self._time + amount / self._weights[client]
        if self._all_weights is None:  # added up: a running sum would lose small weights next to great ones
            self._all_weights = sum(self._weights.values())
        self._newcomers_start = max(self._newcomers_start, self._time) + amount / self._all_weights
