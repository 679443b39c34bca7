"""Who connects: systemd's socket and Prometheus."""

import json
from pathlib import Path

from tests.vm.guest.service import PAYLOAD, Stream, complete, get, run, show, wait_until

_PROMETHEUS = 9090


def a_socket_starts_the_service() -> str:
    """With the socket's unit the first connection starts the service, and none is refused during a restart."""
    run("systemctl", "disable", "--now", "numaserve.service")
    run("systemctl", "enable", "--now", "numaserve.socket")
    try:
        assert show("ActiveState") == "inactive"
        complete()
        assert show("ActiveState") == "active"
        run("systemctl", "restart", "--no-block", "numaserve.service")
        wait_until("it is being started again", lambda: show("ActiveState") != "active")
        waiting = [Stream(4) for _ in range(3)]
        assert all(stream.text() for stream in waiting)
    finally:
        run("systemctl", "disable", "--now", "numaserve.socket", "numaserve.service")
        run("systemctl", "enable", "numaserve.service")
    return f"{len(waiting)} connections waited for a restart, none was refused"


def prometheus_scrapes() -> str:
    """Prometheus takes the example's configuration and rules, and has the service's series."""
    folder = Path("/run/prometheus-check")
    folder.mkdir()
    deploy = PAYLOAD / "tree" / "deploy"
    run("promtool", "check", "config", str(deploy / "prometheus.yml"))
    data = f"--storage.tsdb.path={folder}"
    own = f"--web.listen-address=127.0.0.1:{_PROMETHEUS}"
    run("systemd-run", "-u", "scraper", "prometheus", f"--config.file={deploy / 'prometheus.yml'}", data, own)
    try:
        complete()
        up = wait_until("the service is scraped", lambda: _query("up"))
        tokens = wait_until("tokens are counted", lambda: _query("numaserve_generation_tokens_total"))
    finally:
        run("systemctl", "stop", "scraper")
    assert up == ["1"]
    return f"up, numaserve_generation_tokens_total is {tokens[0]}"


def _query(expression: str) -> list[str]:
    status, body = get(f"/api/v1/query?query={expression}", port=_PROMETHEUS)
    found = json.loads(body)["data"]["result"] if status == 200 else []
    return [each["value"][1] for each in found if each["value"][1] != "0"]
