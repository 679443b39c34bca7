"""`numaserve doctor`: tables, JSON, exit status and the host file. The measurements are those of another host."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from numaserve.server.cli import doctor
from numaserve.server.cli.main import main
from numaserve.workers.bench import host
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.doctor.checks import CHECKS
from numaserve.workers.planning.doctor.findings import finding, ok, problem
from numaserve.workers.planning.doctor.rates import HostRates
from numaserve.workers.planning.topology import Topology

from tests.support.host_rates import RATES


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return (caught.value.code, *capsys.readouterr())


@pytest.fixture(autouse=True)
def _other_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(_: Topology, say: Callable[[str], None]) -> HostRates:
        say("measuring")
        return RATES

    monkeypatch.setattr(host, "measure_host", measured)


@pytest.fixture
def _good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_host", lambda _: [finding("swap", "none", ok("none"))])


def test_quick_shows_the_settings_of_this_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "doctor", "--quick")
    assert err == "" and "Measurements" not in out
    assert all(f" {check.name} " in out for check in CHECKS)
    last = out.splitlines()[-1].split(", ")
    assert [part.split(" ")[1] for part in last] == ["ok", "advice", "problem", "unknown"]
    assert sum(int(part.split(" ")[0]) for part in last) == len(CHECKS)
    assert status == (0 if ", 0 problem, " in out else 1)


@pytest.mark.usefixtures("_good")
def test_json_has_the_same_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    status, table, _ = run(capsys, "doctor")
    assert status == 0 and "Settings" in table and "Measurements" in table
    _, out, _ = run(capsys, "doctor", "--json")
    found = json.loads(out)
    assert found["checks"] == [{"check": "swap", "found": "none", "wanted": "none", "change": "", "status": "ok"}]
    assert found["rates"]["remote_gb_s"] == [[None, 52.0], [49.0, None]]
    assert all(f" {each['check']} " in table and f" {each['found']} " in table for each in found["measurements"])
    assert "measurements" not in json.loads(run(capsys, "doctor", "--json", "--quick")[1])


@pytest.mark.parametrize("options", [("--quick",), ("--quick", "--json"), ()])
def test_a_problem_is_exit_status_1(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [finding("swap", "none", problem("2 GiB", "`swapoff -a` [now]"))]
    monkeypatch.setattr(doctor, "check_host", lambda _: findings)
    status, out, err = run(capsys, "doctor", *options)
    assert (status, err) == (1, "")
    assert "`swapoff -a` [now]" in out


@pytest.mark.usefixtures("_good")
def test_a_written_host_can_be_planned_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "host.yaml"
    assert run(capsys, "doctor", "--write", str(file))[0] == 0
    assert "node-read-gb-s: 97.0\n" in file.read_text()
    status, out, err = run(capsys, "plan", "--shape", "tiny", "--host", str(file))
    assert (status, err) == (0, "")
    assert "decode, rank" in out


def test_kernels_that_cannot_run_are_a_problem_and_nothing_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise OperatorError("numaserve needs a processor with AVX2")

    monkeypatch.setattr(doctor, "instruction_set", refuse)
    status, out, _ = run(capsys, "doctor")
    assert status == 1 and "numaserve needs a processor with AVX2" in out and "Measurements" not in out


def test_a_file_that_cannot_be_written_is_one_line_before_the_measurements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "host.yaml")
    for options, expected in (
        (("--write", file, "--quick"), "leave one of them out"),
        (("--write", str(tmp_path / "host.json")), "ends with .yaml or .yml"),
        (("--write", str(tmp_path / "no" / "host.yaml")), "the folder does not exist"),
    ):
        status, out, err = run(capsys, "doctor", *options)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert expected in err
    (tmp_path / "host.yaml").mkdir()
    status, _, err = run(capsys, "doctor", "--write", file)
    assert status == 2 and err == f"numaserve: --write {file}: cannot write the file: Is a directory\n"
