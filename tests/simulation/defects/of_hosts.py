"""Defects in what links the front end to the agents of other hosts."""

from collections.abc import Callable

from numaserve.server.supervisor.agent_link import AgentLink
from numaserve.server.supervisor.agent_messages import FromAgent
from numaserve.server.supervisor.remote_group import RemoteGroup

from tests.simulation.defects.registry import defect


@defect(AgentLink, "_on_answer", first_seed=340)
def a_silent_host_is_awaited(right: Callable[..., None], link: AgentLink, message: FromAgent) -> None:
    """Nobody looks at the time since its last message."""
    right(link, message)
    link._silence.stop()


@defect(RemoteGroup, "_on_lost", first_seed=40)
def a_lost_host_is_told_to_nobody(_right: Callable[..., None], group: RemoteGroup, _reason: str) -> None:
    """Only the next step shows that its workers are gone."""
    if not group._ended.done():
        group._ended.set_result(None)
