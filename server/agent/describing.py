"""The description of this host for a front end: processor, cores, memory, and the content of a checkpoint."""

from pathlib import Path

import msgspec
from numaserve.server.service.checks.checkpoint_digest import checkpoint_digest
from numaserve.server.service.checks.instruction_set import instruction_set
from numaserve.server.supervisor.agent_messages import Describe, Described
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.topology import read_topology


def describe(message: Describe) -> Described:
    """Return the description. Raises `OperatorError` for a checkpoint that is not here or cannot be read."""
    model = Path(message.model)
    if not model.exists():
        raise OperatorError(
            f"{model} is not on this host. Copy the checkpoint there, or name its path in the hosts file"
        )
    topology = msgspec.Raw(msgspec.msgpack.encode(read_topology()))
    return Described(instruction_set().name, topology, checkpoint_digest(model))
