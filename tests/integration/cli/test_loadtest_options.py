"""The options of the commands, as far as no server is needed."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
from numaserve.server.cli.main import main
from numaserve.server.loadtest.options import DatasetName, Workload, default_rate, parse_rates
from numaserve.workers.interface.errors import OperatorError

SERVE = ("bench", "serve", "--base-url", "http://127.0.0.1:1")


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.startswith("numaserve: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("given", [["1", "2.5", "inf"], ["1,2.5,inf"], ["1 2.5", "inf"]])
def test_several_rates_make_a_sweep(given: list[str]) -> None:
    assert parse_rates(given) == [1.0, 2.5, math.inf]


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "fast"])
def test_a_rate_is_above_zero(rate: str) -> None:
    with pytest.raises(OperatorError, match=f"--request-rate {rate}"):
        parse_rates(["1", rate])


def test_only_a_trace_has_times_of_its_own() -> None:
    assert default_rate(Workload()) == math.inf
    assert default_rate(Workload(DatasetName.TRACE, Path("t"))) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "serve"), "Missing option '--base-url'"),
        ((*SERVE, "--dataset-name", "sonnet"), "'sonnet' is not one of"),
        ((*SERVE, "--dataset-name", "sharegpt"), "name it with --dataset-path"),
        ((*SERVE, "--num-prompts", "0"), "--num-prompts"),
        ((*SERVE, "--random-range-ratio", "1.5"), "--random-range-ratio"),
        ((*SERVE, "--request-rate", "0"), "--request-rate 0"),
        ((*SERVE, "--goodput", "itl:5"), "--goodput itl:5"),
        ((*SERVE, "--goodput", "ttft:5", "tpot"), "--goodput tpot"),
        ((*SERVE, "ttft:5"), "unexpected argument: ttft:5"),
        ((*SERVE, "--extra-request-body", "[]"), "must be a JSON object"),
        ((*SERVE, "--extra-request-body", "{"), "is not valid JSON"),
        ((*SERVE, "--api-key-file", "none"), "cannot read the API key file none"),
        ((*SERVE, "--output-file", "none/o"), "cannot write --output-file"),
        ((*SERVE, "--plot", "x.gif"), "--plot x.gif"),
        (SERVE, "Check that the server is running"),
        (("bench", "compare", "http://127.0.0.1:1"), "needs at least two URLs"),
        (("bench", "compare", "http://127.0.0.1:1", "http://127.0.0.1:1/v1"), "add --flush-cache"),
        (("bench", "compare", "http://h", "http://h", "--request-rate", "1,2"), "at one --request-rate"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_change(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in mistake(capsys, *arguments)


def test_an_empty_key_file_is_a_mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none yet\n\n")
    file.chmod(0o600)
    assert "contains no key" in mistake(capsys, *SERVE, "--api-key-file", str(file))


def test_the_bare_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench"])
    assert caught.value.code == 0
    assert "compare" in capsys.readouterr().out


def test_the_client_needs_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys, numaserve.server.loadtest.session;"
        "print(*[name for name in sys.modules if name.startswith(('torch', 'numaserve.'))])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    ours = [name for name in shown if not name.startswith("numaserve.server.loadtest")]
    assert set(ours) <= {
        *("numaserve.server", "numaserve.server.client", "numaserve.server.client.tls"),
        *("numaserve.workers", "numaserve.workers.interface", "numaserve.workers.interface.errors"),
    }
