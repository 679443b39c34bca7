"""The request router of Ray Serve that chooses replicas by the prefix of the prompt."""

from __future__ import annotations

from typing import Any

from numaserve.ray.calls import Call
from numaserve.ray.prefixes import PrefixMap, ranked
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

_CAPACITY = 200_000  # blocks: 50 MB of prompts, in about 50 MB of memory


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # untyped for mypy
    """The router that prefers the replica with the longest known prefix, unless other replicas have far fewer requests.

    Serve's `FIFOMixin` was rejected: with it, a request takes the replica that was chosen for another request.
    """

    def initialize_state(self, slack: int = 8) -> None:
        """Initialize the prefix map; `slack` is passed to `ranked`."""
        self._prefixes: PrefixMap[ReplicaID] = PrefixMap(_CAPACITY)
        self._slack = slack

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas in the order of `ranked`."""
        replicas = {replica.replica_id: replica for replica in candidate_replicas}
        loads = {each: self.replica_queue_len_cache.get(each) or 0 for each in replicas}
        order = ranked(self._prefixes.matched(_blocks(pending_request), replicas), loads, slack=self._slack)
        return [[replicas[each] for each in rank] for rank in order]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Record the blocks that the replica was sent."""
        self._prefixes.learn(_blocks(pending_request), replica_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Drop the replicas that have ended."""
        super().update_replicas(replicas)
        self._prefixes.forget(replica.replica_id for replica in replicas)


def _blocks(request: PendingRequest | None) -> tuple[bytes, ...]:
    call = request.args[0] if request is not None and request.args else None
    return call.prefix if isinstance(call, Call) else ()
