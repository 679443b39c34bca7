"""`python -m numaserve.ray.stages MODEL --hosts N [-- OPTIONS]`: a model over several hosts of a Ray cluster.

Ray places an agent on each host but this one and starts it again when it ends. Everything else goes from the server,
which runs here, to its agents. When an agent restarts on its host, requests resume. When Ray has to replace a host, the
server restarts too.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from numaserve.ray.launch import command_on
from numaserve.ray.nodes import RESOURCE, Claim
from numaserve.ray.stage_agent import Place, StageAgent
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_node_ip_address
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_LOOKS_S = 2.0
_OWN_NODE = 0.001  # of the resource by which Ray names a node


def main() -> int:
    """Serve the model until the server ends or a signal comes, and return the server's status."""
    given = _arguments()
    ray.init(address=given.address, log_to_driver=False)
    hosts = _place_hosts(given.hosts, given.nodes, given.wait_seconds)
    try:
        with tempfile.TemporaryDirectory(prefix="numaserve-stages-") as folder:
            return _Stages(given, hosts, Path(folder)).serve()
    finally:
        remove_placement_group(hosts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m numaserve.ray.stages", description=__doc__)
    parser.add_argument("model", help="model, as for `numaserve serve`; each host must find it")
    parser.add_argument("--hosts", type=int, required=True, help="number of hosts, each with one pipeline stage")
    parser.add_argument("--nodes", type=int, default=1, help="NUMA nodes of each host (default: 1)")
    parser.add_argument("--address", default="auto", help="address of the Ray cluster (default: auto)")
    parser.add_argument("--wait-seconds", type=float, default=300.0, help="time limit for free hosts (default: 300)")
    parser.add_argument("--nodes-folder", default="/sys/devices/system/node", help=argparse.SUPPRESS)
    parser.add_argument("--command", type=json.loads, help=argparse.SUPPRESS)
    own, options = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    given = parser.parse_args(own)
    if given.hosts < 2:
        parser.error("--hosts must be at least 2: use `numaserve serve` for one host")
    given.options = options
    given.command = given.command or [sys.executable, "-P", "-m", "numaserve.server.cli.main"]
    return given


def _place_hosts(hosts: int, nodes: int, seconds: float) -> PlacementGroup:
    """Return a placement on as many hosts, the first of which is this one. Exits where they are not free in time."""
    bundles: list[dict[str, float]] = [{RESOURCE: nodes} for _ in range(hosts)]
    bundles[0][f"node:{get_node_ip_address()}"] = _OWN_NODE
    group = placement_group(bundles, strategy="STRICT_SPREAD")
    if not group.wait(seconds):
        remove_placement_group(group)
        raise SystemExit(
            f"Ray has not found {hosts} hosts with {nodes} free {RESOURCE} each within {seconds:g} s: start Ray on more"
            f" hosts with --resources='{{\"{RESOURCE}\": {nodes}}}', or end what uses theirs"
        )
    return group


class _Stages:
    """The agents on the hosts of a placement, and the server on this host."""

    def __init__(self, given: argparse.Namespace, hosts: PlacementGroup, folder: Path) -> None:
        self._given, self._folder = given, folder
        made = subprocess.run(
            [*given.command, "agent", "--new-key", str(folder / "front-end.key")],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        )
        self._agents = [self._agent(hosts, stage, made.stdout.strip()) for stage in range(1, given.hosts)]
        self._server: subprocess.Popen[bytes] | None = None
        self._signal = 0

    def _agent(self, hosts: PlacementGroup, stage: int, front_end: str) -> Any:
        where = PlacementGroupSchedulingStrategy(hosts, placement_group_bundle_index=stage)
        options = {"num_cpus": 0, "resources": {RESOURCE: self._given.nodes}, "max_restarts": -1}
        return (
            ray.remote(StageAgent)
            .options(scheduling_strategy=where, max_task_retries=-1, **options)
            .remote(
                f"{hosts.id.hex()[:16]}-{stage}",
                front_end,
                self._given.nodes,
                self._given.command,
                self._given.nodes_folder,
            )
        )

    def serve(self) -> int:
        """Run the server until it ends."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        while True:
            places: list[Place] = ray.get([each.place.remote() for each in self._agents])
            self._start(places)
            while self._is_running() and not self._have_moved(places):
                time.sleep(_LOOKS_S)
            assert self._server is not None  # noqa: S101  # it was started
            if self._server.poll() is not None or self._signal:
                return self._server.wait()
            self._server.terminate()
            self._server.wait()

    def _start(self, places: Sequence[Place]) -> None:
        stages = ["here", *({"agent": each.address, "public-key": each.public_key} for each in places)]
        hosts = self._folder / "hosts.yaml"
        hosts.write_text(json.dumps({"key-file": str(self._folder / "front-end.key"), "stages": stages}))
        served = "serve", self._given.model, "--hosts", str(hosts)
        claim = Claim.take(self._given.nodes, Path(self._given.nodes_folder))
        try:
            self._server = subprocess.Popen(
                command_on(claim.cores, [*self._given.command, *served, *self._given.options]),
                pass_fds=claim.descriptors,
            )
        finally:
            claim.close()  # the server has inherited the descriptors

    def _is_running(self) -> bool:
        return self._server is not None and self._server.poll() is None and not self._signal

    def _have_moved(self, places: Sequence[Place]) -> bool:
        """Whether agents are on other hosts now. Those that Ray is starting count as not moved."""
        try:
            now: list[Place] = ray.get([each.place.remote() for each in self._agents], timeout=_LOOKS_S)
        except (GetTimeoutError, RayError):
            return False
        return now != [*places]

    def _pass_on(self, number: int, _frame: object) -> None:
        self._signal = number
        if self._server is not None:
            self._server.send_signal(number)


if __name__ == "__main__":
    sys.exit(main())
