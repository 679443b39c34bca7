"""The hosts of the pipeline stages: what their agents report, and the checks that they fit this front end."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq
from numaserve.server.common.key_files import read_key_file
from numaserve.server.config.hosts import read_hosts
from numaserve.server.config.serve import ServeConfig
from numaserve.server.service.checks.checkpoint_digest import checkpoint_digest
from numaserve.server.supervisor.agent_messages import (
    Describe,
    Described,
    FromAgent,
    OtherVersion,
    Refused,
    Working,
    decode_from_agent,
    encode_message,
    other_version,
)
from numaserve.server.supervisor.agent_wire import AgentAddress
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.host_links import check_curve, connect
from numaserve.workers.interface.protocol import ProtocolError
from numaserve.workers.planning.topology import Topology

_ANSWER_S = 10.0  # an agent that reads a checkpoint shows each second that it is at work

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StageHost:
    """A host with an agent, as the agent has described it."""

    agent: AgentAddress
    model: Path
    topology: Topology


def find_hosts(config: ServeConfig, model: Path, isa: str | None) -> list[StageHost | None]:
    """Return the host of each stage, None for this one; empty without a hosts file.

    The agents have the same version of numaserve, the same instruction set and the same checkpoint as this front end.
    Raises `OperatorError`, which names the host that differs or does not answer.
    """
    if config.hosts is None:
        return []
    check_curve()
    key_file, stages = read_hosts(config.hosts)
    keys = read_key_file(key_file)
    if config.pp not in (1, len(stages)):
        raise OperatorError(f"--pp is {config.pp}, and {config.hosts} has {len(stages)} stages: leave --pp out")
    places = [
        None
        if stage is None
        else (AgentAddress(stage.agent, stage.public_key, keys), (stage.model or model).absolute())
        for stage in stages
    ]
    _log.info("asking %d agents for their hosts and checkpoints", sum(place is not None for place in places))
    with ThreadPoolExecutor(len(places) + 1) as threads:
        own = threads.submit(checkpoint_digest, model)
        described = [None if place is None else threads.submit(describe_host, *place) for place in places]
        answers = [None if each is None else each.result() for each in described]
        digest = own.result()
    found: list[StageHost | None] = []
    for place, answer in zip(places, answers, strict=True):
        if place is None or answer is None:
            found.append(None)
            continue
        agent, path = place
        where = f"the host of the agent at {agent.address}"
        if answer.digest != digest:
            raise OperatorError(
                f"{where} has another checkpoint in {path} than this host in {model}: copy the files, then start again"
            )
        if answer.isa != isa:
            raise OperatorError(
                f"{where} uses the instruction set {answer.isa}, and this host {isa}: set NUMASERVE_ISA to one that all"
                " of them have, for the agents and the server"
            )
        found.append(StageHost(agent, path, msgspec.msgpack.decode(answer.topology, type=Topology)))
    return found


def describe_host(agent: AgentAddress, model: Path) -> Described:
    """Ask an agent for a description of its host and of the checkpoint `model` there. Raises `OperatorError`."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        connect(socket, agent.address, agent.public, agent.keys)
        with suppress(zmq.Again):  # the agent has refused the connection already, and will not answer
            socket.send_multipart(encode_message(Describe(str(model))), zmq.NOBLOCK)
        while True:
            if not socket.poll(round(_ANSWER_S * 1000)):
                raise OperatorError(
                    f"the agent at {agent.address} does not answer within {_ANSWER_S:g} s. Check that it runs, that its"
                    f" --front-ends has {agent.keys.public}, and that its key is {agent.public}"
                )
            try:
                answer = decode_from_agent(socket.recv_multipart())
            except OtherVersion as other:
                raise OperatorError(other_version(agent.address, other)) from None
            except ProtocolError as error:
                raise OperatorError(f"the agent at {agent.address} has sent an invalid answer: {error}") from error
            if not isinstance(answer, Working):
                return _description(agent, answer)


def _description(agent: AgentAddress, answer: FromAgent) -> Described:
    if isinstance(answer, Described):
        return answer
    problem = answer.message if isinstance(answer, Refused) else "another answer"
    raise OperatorError(f"the agent at {agent.address} refused: {problem}")
