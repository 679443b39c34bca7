"""The links between the ranks of consecutive pipeline stages, as their launches name them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs
from numaserve.server.supervisor.agent_wire import AgentAddress
from numaserve.workers.interface.host_links import Address, new_keys
from numaserve.workers.interface.protocol import Launch


def linked(
    launches: Sequence[Launch],
    agents: Sequence[AgentAddress | None],
    ports: Mapping[int, Sequence[int]],
    folder: Path | None,
) -> list[list[Launch]]:
    """Return the launches of each stage, with the links to the stages before and after.

    `agents` has the agent of each stage, None for this host. `ports` has the ports on which the ranks of an agent's
    stage listen, by stage. Two stages of this host have sockets in the `folder`; all others have encrypted links
    with new keys.
    """
    tp = launches[0].world_size
    stages = [list(launches[begin : begin + tp]) for begin in range(0, len(launches), tp)]
    for stage in range(1, len(stages)):
        agent = agents[stage]
        for rank in range(tp):
            before, own = stages[stage - 1][rank], stages[stage][rank]
            if agent is None:
                rows = f"ipc://{folder}/rank{own.number}.sock"
                before, own = structs.replace(before, rows_to=rows), structs.replace(own, rows_from=rows)
            else:
                keys = new_keys()
                rows = str(Address(agent.address.host, ports[stage][rank]))
                before = structs.replace(before, rows_to=rows, rows_public=keys.public)
                own = structs.replace(own, rows_from=rows, rows_secret=keys.secret)
            stages[stage - 1][rank], stages[stage][rank] = before, own
    return stages
