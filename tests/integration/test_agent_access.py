"""Strangers, other versions and other checkpoints at an agent."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
from numaserve.server.agent import hosted
from numaserve.server.agent.agent import Agent
from numaserve.server.agent.allowed import read_front_ends
from numaserve.server.agent.hosted import HostOptions, listen_at
from numaserve.server.common.key_files import read_key_file, write_key_file
from numaserve.server.config.serve import load_config
from numaserve.server.service.checks.instruction_set import instruction_set
from numaserve.server.service.hosts import describe_host, find_hosts
from numaserve.server.supervisor.agent_link import AgentLink
from numaserve.server.supervisor.agent_messages import (
    Beat,
    Claim,
    Claimed,
    Failed,
    FromAgent,
    Refused,
    StartStage,
    decode_from_agent,
    encode_message,
    own_version,
)
from numaserve.server.supervisor.agent_wire import AgentAddress
from numaserve.server.supervisor.group import GroupFailed
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.host_links import PART_BYTES, Address, KeyPair, connect, listen, new_keys
from numaserve.workers.interface.protocol import Launch
from zmq.utils.monitor import recv_monitor_message

from tests.support.chat_model import write_model
from tests.support.plan_limits import capacity

_PATIENCE_MS = 20_000
OUTCOMES = {zmq.Event.HANDSHAKE_SUCCEEDED, zmq.Event.HANDSHAKE_FAILED_AUTH, zmq.Event.DISCONNECTED}
KEYS, FRONT_END, OTHER_FRONT_END = new_keys(), new_keys(), new_keys()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@asynccontextmanager
async def running_agent(folder: Path) -> AsyncIterator[Address]:
    """An agent in this event loop, for two front ends."""
    front_ends = folder / "front-ends"
    front_ends.write_text(f"{FRONT_END.public}\n{OTHER_FRONT_END.public}  # the other one\n")
    listener = listen_at(Address("127.0.0.1", 0))
    address = Address("127.0.0.1", listener.getsockname()[1])
    agent = Agent(HostOptions(address, 0, 0), KEYS, front_ends, listener.detach())
    try:
        yield address
    finally:
        await agent.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made = zmq.Context()
    made.setsockopt(zmq.LINGER, 0)  # of all its sockets
    yield made
    made.destroy(linger=0)


def asked(context: zmq.Context[zmq.Socket[bytes]], address: Address, frames: list[bytes]) -> list[bytes]:
    """The answer of the agent to the frames of a known front end."""
    with context.socket(zmq.DEALER) as dealer:
        connect(dealer, address, KEYS.public, FRONT_END)
        dealer.send_multipart(frames)
        assert dealer.poll(_PATIENCE_MS)
        return dealer.recv_multipart()


def is_let_in(context: zmq.Context[zmq.Socket[bytes]], address: Address, server: str, keys: KeyPair) -> bool:
    """Whether the handshake succeeds, of a peer that takes `server` for the agent's key. No message arrives then."""
    with context.socket(zmq.DEALER) as dealer, dealer.get_monitor_socket() as monitor:
        connect(dealer, address, server, keys)
        outcome: zmq.Event | None = None
        while outcome not in OUTCOMES:
            assert monitor.poll(_PATIENCE_MS)
            outcome = recv_monitor_message(monitor)["event"]
        assert not dealer.poll(0)
        dealer.disable_monitor()
        return outcome == zmq.Event.HANDSHAKE_SUCCEEDED


@pytest.mark.parametrize("server", [KEYS.public, new_keys().public], ids=["not listed", "without the agent's key"])
async def test_a_stranger_is_refused_and_learns_nothing(
    server: str, tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    async with running_agent(tmp_path) as address:
        assert not await asyncio.to_thread(is_let_in, context, address, server, new_keys())
        if server == KEYS.public:
            link = await AgentLink.claim(AgentAddress(address, KEYS.public, FRONT_END), 1)
            link.close()


async def test_a_stranger_fills_no_memory(tmp_path: Path) -> None:
    """A command of the handshake that is longer than a part is refused before it is read."""

    def flood(address: Address) -> bool:
        with socket.create_connection((address.host, address.port)) as stranger:
            stranger.settimeout(_PATIENCE_MS / 1000)
            greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE".ljust(23, b"\0") + bytes(32)
            stranger.sendall(greeting + b"\x06" + (2 * PART_BYTES).to_bytes(8, "big"))
            try:
                while stranger.recv(1 << 16):
                    pass
            except ConnectionResetError:
                return True
            return True

    async with running_agent(tmp_path) as address:
        assert await asyncio.to_thread(flood, address)


async def test_another_version_is_refused_with_both(tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    async with running_agent(tmp_path) as address:
        _, *parts = encode_message(Claim(1))
        version, answer = await asyncio.to_thread(asked, context, address, [b"9.9 (abc)", *map(bytes, parts)])
        assert version.decode() == own_version()
        assert isinstance(decode_from_agent([version, answer]), Refused)

    other = context.socket(zmq.ROUTER)
    listener = listen_at(Address("127.0.0.1", 0))
    agent = AgentAddress(Address("127.0.0.1", listener.getsockname()[1]), KEYS.public, FRONT_END)
    listen(other, agent.address, KEYS.secret, listener.detach())

    def answer_twice() -> None:
        for _ in range(2):
            assert other.poll(_PATIENCE_MS)
            peer, *_ = other.recv_multipart()
            other.send_multipart([peer, b"9.9 (abc)", b"?"])

    answering = asyncio.to_thread(answer_twice)
    both = rf"runs numaserve 9\.9 \(abc\), and this front end {own_version().split()[0]}"

    async def ask_twice() -> None:
        with pytest.raises(OperatorError, match=both):
            await asyncio.to_thread(describe_host, agent, tmp_path)
        with pytest.raises(GroupFailed, match=both):
            await AgentLink.claim(agent, 1)

    with other:
        await asyncio.gather(answering, ask_twice())


async def test_what_is_no_message_is_refused_and_changes_nothing(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    version = own_version().encode()
    huge = [bytes(each) for each in encode_message(Claim(1 << 20))]  # ranks
    async with running_agent(tmp_path) as address:
        for frames in ([version], [version, b"garbage"], [version, b"\x81\xa4type\xa5claim"], [b"", b""], huge):
            answer = await asyncio.to_thread(asked, context, address, frames)
            assert isinstance(decode_from_agent(answer), Refused)
        answer = await asyncio.to_thread(asked, context, address, [version, bytes(encode_message(Claim(2))[1])])
        claimed = decode_from_agent(answer)
        assert isinstance(claimed, Claimed)
        assert len(claimed.ports) == 2


async def test_an_agent_works_for_one_front_end_and_the_same_one_takes_it_again(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as address:
        agent = AgentAddress(address, KEYS.public, FRONT_END)
        first = await AgentLink.claim(agent, 1)
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        first.on_lost = lost.set_result
        with pytest.raises(GroupFailed, match=f"it works for the front end {FRONT_END.public}"):
            await AgentLink.claim(AgentAddress(address, KEYS.public, OTHER_FRONT_END), 1)
        second = await AgentLink.claim(agent, 1)
        assert "has given up this front end" in await lost
        assert second.is_open
        second.close()


async def test_a_silent_front_end_is_given_up_and_another_one_takes_the_agent(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "LOST_S", 0.2)
    async with running_agent(tmp_path) as address:
        claim = [bytes(each) for each in encode_message(Claim(1))]
        with context.socket(zmq.DEALER) as silent:
            connect(silent, address, KEYS.public, FRONT_END)
            silent.send_multipart(claim)
            assert await asyncio.to_thread(silent.poll, _PATIENCE_MS)
            other = AgentAddress(address, KEYS.public, OTHER_FRONT_END)
            while True:  # until the agent has noticed
                try:
                    link = await AgentLink.claim(other, 1)
                except GroupFailed as busy:
                    assert FRONT_END.public in str(busy)
                else:
                    break
            link.close()
            assert isinstance(decode_from_agent(silent.recv_multipart()), Claimed)
            silent.send_multipart([bytes(each) for each in encode_message(Beat(with_times=False))])
            assert await asyncio.to_thread(silent.poll, _PATIENCE_MS)
            assert isinstance(decode_from_agent(silent.recv_multipart()), Refused)


async def test_another_checkpoint_is_refused_with_the_host(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    other = tmp_path / "other"
    shutil.copytree(model, other)
    keys = tmp_path / "front-end.key"
    keys.write_text(f"{FRONT_END.secret}\n")
    keys.chmod(0o600)
    async with running_agent(tmp_path) as address:
        hosts = tmp_path / "hosts.yaml"
        hosts.write_text(
            f"key-file: {keys}\nstages: [here, {{agent: '{address}', public-key: {KEYS.public}, model: {other}}}]\n"
        )
        config = load_config({"model": str(model), "hosts": hosts})
        isa = instruction_set().name
        first, second = await asyncio.to_thread(find_hosts, config, model, isa)
        assert first is None
        assert second is not None
        assert second.topology.cores > 0
        with pytest.raises(OperatorError, match="uses the instruction set"):
            await asyncio.to_thread(find_hosts, config, model, "none")
        with (other / "model.safetensors").open("r+b") as weights:
            weights.seek(-1, 2)
            weights.write(b"\x55")
        with pytest.raises(OperatorError, match=f"the agent at {address} has another checkpoint in {other}"):
            await asyncio.to_thread(find_hosts, config, model, isa)
        shutil.rmtree(other)
        with pytest.raises(OperatorError, match="is not on this host"):
            await asyncio.to_thread(find_hosts, config, model, isa)


async def test_a_front_end_that_is_removed_or_added_counts_from_the_next_connection_on(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    async with running_agent(tmp_path) as address:
        front_ends = tmp_path / "front-ends"
        for mode, text, is_allowed in (
            (0o644, OTHER_FRONT_END.public, False),
            (0o666, FRONT_END.public, False),  # anyone could have written it
            (0o644, FRONT_END.public, True),
        ):
            front_ends.write_text(text)
            front_ends.chmod(mode)
            assert read_or_none(front_ends) == (None if mode == 0o666 else frozenset([text]))
            found = await asyncio.to_thread(is_let_in, context, address, KEYS.public, FRONT_END)
            assert found == is_allowed


def read_or_none(file: Path) -> frozenset[str] | None:
    """The keys in a file; None if it is refused with the remedy."""
    try:
        return read_front_ends(file)
    except OperatorError as error:
        assert f"run chmod go-w {file}" in str(error)
        return None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660])
def test_a_key_file_that_others_can_read_is_refused_with_the_remedy(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "key"
    keys = write_key_file(file)
    assert read_key_file(file) == keys
    with pytest.raises(OperatorError, match="Name a file that does not exist"):
        write_key_file(file)
    file.chmod(mode)
    with pytest.raises(OperatorError, match=f"run chmod 600 {file}"):
        read_key_file(file)


def test_a_key_may_be_a_credential_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = write_key_file(tmp_path / "agent.key")
    (tmp_path / "agent.key").chmod(0o440)  # as systemd shows one that the user of a service may read
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_key_file(Path("agent.key")) == keys


async def test_a_front_end_hears_of_workers_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_folder(*_: object) -> None:
        raise OperatorError("no directory is usable")

    monkeypatch.setattr(hosted, "WorkerGroup", without_folder)
    heard: asyncio.Queue[FromAgent] = asyncio.Queue()
    stage = hosted.HostedStage(HostOptions(Address("127.0.0.1", 0), 0, 0), 1, heard.put_nowait, lambda: None)
    launch = Launch(0, 1, "m", [[0]], [0], [1], capacity(), -1, 0, 5.0)
    stage.start(StartStage([launch], 1, 4096, 0, 0))
    failed = await asyncio.wait_for(heard.get(), 10)
    assert isinstance(failed, Failed)
    assert failed.message.endswith("no directory is usable")
    await stage.end()
