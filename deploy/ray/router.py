"""Which replica gets a request: a request router of Ray Serve that looks for the prompt's beginning."""

from __future__ import annotations

from typing import Any

from numaserve.ray.calls import Call
from numaserve.ray.prefixes import PrefixMap, ranked
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

_CAPACITY = 200_000  # blocks: 50 MB of prompts, in some 50 MB of memory


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # of whose types mypy knows nothing
    """Sends a request to the replica that was sent the longest part of its prompt, unless others have far less to do.

    Without Serve's `FIFOMixin`: there a request takes the replica that was chosen for another one.
    """

    def initialize_state(self, slack: int = 8) -> None:
        """`slack` is as for `ranked`."""
        self._prefixes: PrefixMap[ReplicaID] = PrefixMap(_CAPACITY)
        self._slack = slack

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """As `ranked` says."""
        replicas = {replica.replica_id: replica for replica in candidate_replicas}
        loads = {each: self.replica_queue_len_cache.get(each) or 0 for each in replicas}
        order = ranked(self._prefixes.matched(_blocks(pending_request), replicas), loads, slack=self._slack)
        return [[replicas[each] for each in rank] for rank in order]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Learn what the replica was sent."""
        self._prefixes.learn(_blocks(pending_request), replica_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Forget those that are gone."""
        super().update_replicas(replicas)
        self._prefixes.forget(replica.replica_id for replica in replicas)


def _blocks(request: PendingRequest | None) -> tuple[bytes, ...]:
    call = request.args[0] if request is not None and request.args else None
    return call.prefix if isinstance(call, Call) else ()
