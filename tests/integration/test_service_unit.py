"""What the systemd unit asks of the system that it is installed on."""

from configparser import RawConfigParser
from pathlib import Path

UNIT = Path(__file__).parents[2] / "deploy" / "numaserve.service"


def test_the_unit_runs_only_the_server_and_the_shell() -> None:
    # A small system has no `kill` outside of its shell, for one: `systemctl reload` failed there.
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    commands = [value.split()[0] for name, value in parser["Service"].items() if name.startswith("Exec")]
    assert sorted(commands) == ["/opt/numaserve/current/bin/numaserve", "sh"]
