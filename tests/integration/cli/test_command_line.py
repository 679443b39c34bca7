import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from numaserve.server.cli.main import main
from numaserve.workers.bench.hybrid_shapes import HybridShape
from numaserve.workers.planning.topology import format_cpu_list

from tests.support.machines import machine

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
}


@pytest.fixture(autouse=True)
def _logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's set-up is the whole process's, other tests' too."""
    monkeypatch.setattr("numaserve.server.service.start.set_up_logging", lambda *_: None)


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """Exit status, standard output and standard error."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return (caught.value.code, *capsys.readouterr())


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistake of the operator is answered with."""
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert err.startswith("numaserve: ")
    assert err.count("\n") == 1
    return err


def test_the_bare_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert "serve" in out
    assert "topology" in out


def test_help_spells_out_long_options_and_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, "serve", "--help")
    assert "--max-running-requests" in out
    assert "[default: 127.0.0.1]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sevre"], "Did you mean 'serve'?"),
        (["serve"], "'model' is not set"),
        (["serve", "demo", "--prot", "1"], "No such option: --prot"),
        (["serve", "demo", "--port", "70000"], "port must be between 0 and 65535"),
        (["serve", "demo", "--tensor-parallel-size", "0"], "tp must be between 1 and 64"),
        (["serve", "demo", "--tp-size", "65"], "tp must be between 1 and 64"),
        (["serve", "demo", "--max-model-len", "1"], "context_length must be between 32"),
        (["serve", "demo", "--max-num-seqs", "0"], "max_running_requests must be between 1"),
        (["serve", "demo", "--dtype", "float16"], "dtype must be 'auto' or 'bfloat16', not 'float16'"),
        (["serve", "demo", "--served-model-name", "a", "--served-model-name", " "], "must not be blank"),
        (["serve", "demo", "--generation-config", "auto"], "generation_config must be 'model' or 'none'"),
        (["serve", "demo", "--root-path", "llm"], "root_path must start with a slash"),
        (["serve", "none.gguf", "--port", "0"], "no such file or folder; give a model folder"),
        (["serve", "demo", "--port", "0", "--api-key-file", "none"], "cannot read the API key file none"),
        (["serve", "demo", "--host", "192.0.2.1"], "choose an address of this machine as --host"),
        (["topology", "none.gguf"], "no such file or folder; give a model folder"),
        (["ring-stat"], "Missing argument 'PID'"),
        (["ring-stat", "1"], "ring-stat: process 1"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in mistake(capsys, *arguments)


def test_a_port_in_use_is_told_before_the_model_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        line = mistake(capsys, "serve", "none.gguf", "--port", str(other.getsockname()[1]))
    assert "Address already in use; choose another --port" in line


def test_a_key_file_without_keys_is_told_before_the_model_is_looked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# none yet\n")
    keys.chmod(0o600)
    assert "contains no key" in mistake(capsys, "serve", "none.gguf", "--port", "0", "--api-key-file", str(keys))


def test_topology_tells_a_cpu_quota_and_what_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numaserve.server.cli.topology.read_topology", lambda: machine(4, 4, cpu_quota=3.5))
    status, out, _ = run(capsys, "topology")
    assert status == 0
    assert "CPU quota           3.5 of 8 cores\n" in out
    assert "note: the CPU quota of 3.5 of 8 cores allows 3 worker threads on node 0" in out


def test_a_table_without_a_terminal_has_whole_cells(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that numbers the cores of two nodes alternately: the list of a node's cores is longer than 80 columns."""
    even = machine(1)
    nodes = tuple(replace(even.nodes[0], id=node, cpus=tuple(range(node, 128, 2))) for node in range(2))
    monkeypatch.setattr("numaserve.server.cli.topology.read_topology", lambda: replace(even, nodes=nodes))
    _, out, _ = run(capsys, "topology")
    for node in nodes:
        assert out.count(f" {format_cpu_list(node.cpus)} ") == 2  # of the node, and of its rank


@pytest.mark.parametrize("command", [["serve", "none.gguf", "--port", "0"], ["topology"]])
def test_an_unknown_instruction_set_is_told_before_the_model_is_looked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("NUMASERVE_ISA", "mmx")
    assert "set NUMASERVE_ISA to amx, avx512, portable or amx_emulated" in mistake(capsys, *command)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", "64", "--threads-per-worker", "1"], "--tp 64 needs 64 cores"),
        (["--kv-cache-gib", "16000"], "--kv-cache-gib 16000 does not fit"),
        (["--state-cache-gib", "1"], "needs a model with recurrent layers, and this model has none: leave the option"),
        (["--context-length", "8192"], "exceeds the model's limit of 4096 tokens: lower the option"),
        (
            ["--expert-parallel"],
            "--expert-parallel needs a model with experts, and this model has none: leave the option out",
        ),
    ],
)
def test_more_than_the_machine_or_the_model_has_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0})
    assert message in mistake(capsys, "serve", model, "--port", "0", *arguments)


@pytest.fixture
def hybrid(model: str) -> str:
    """The folder of a model with recurrent layers, 6.4 MiB of states for each sequence."""
    shape = HybridShape(64, 4, 2, 1, 32, 96, vocab=64, context=4096)
    (Path(model) / "config.json").write_text(json.dumps(shape.config()))
    return model


def test_topology_shows_the_memory_of_recurrent_states(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, hybrid: str
) -> None:
    monkeypatch.setattr("numaserve.server.cli.topology.read_topology", lambda: machine(4, free_gib=16))
    status, out, _ = run(capsys, "topology", hybrid, "--max-running-requests", "8", "--state-cache-gib", "0.1")
    assert status == 0
    assert "states of 8 running and 16 cached sequences\n" in out
    heads = next(line for line in out.splitlines() if "scratch (about)" in line)
    row = next(line for line in out.splitlines() if line.startswith("│ 0    │ 0    │ 0-3   │") and "MiB" in line)
    column = [cell.strip() for cell in heads.split("┃")].index("states")
    assert float(row.split("│")[column].split()[0]) == pytest.approx(24 * 6.28, abs=1)


@pytest.mark.parametrize(
    ("free_gib", "arguments", "tokens"),
    [(16, [], 2048), (0.31, [], 512), (0.31, ["--chunked-prefill-size", "2048"], 2048)],
)
def test_topology_states_the_length_of_steps(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    free_gib: float,
    arguments: list[str],
    tokens: int,
) -> None:
    monkeypatch.setattr("numaserve.server.cli.topology.read_topology", lambda: machine(4, free_gib=free_gib))
    status, out, _ = run(capsys, "topology", model, *arguments)
    assert status == 0
    assert f"\nscratch for steps of at most {tokens} tokens\n" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-running-requests", "4096"], "recurrent states of 4096 sequences (2"),
        (["--state-cache-gib", "9"], "--state-cache-gib 9 does not fit in memory together with the weights"),
    ],
)
def test_states_that_are_too_large_are_refused_before_a_worker_starts(
    capsys: pytest.CaptureFixture[str], hybrid: str, arguments: list[str], message: str
) -> None:
    assert message in mistake(capsys, "serve", hybrid, "--port", "0", "--memory-gib", "8", *arguments)


def test_an_unsupported_architecture_is_named_with_those_that_are_supported(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    (Path(model) / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["Llama5ForCausalLM"]}))
    line = mistake(capsys, "serve", model, "--port", "0")
    assert "'Llama5ForCausalLM' is not supported" in line
    assert "LlamaForCausalLM" in line


def test_as_many_models_are_loaded_at_once_as_the_option_says(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numaserve.server.cli.topology.read_topology", lambda: machine(2))
    file = tmp_path / "models.yaml"
    each = {name: {"model": model, "kv_cache_gib": 0.01, "cores": core} for core, name in enumerate("ab")}
    file.write_text(json.dumps({"models": each, "max-loaded": 1}))
    several = ("topology", "--models", str(file))
    assert "max-loaded is 1, and 2 models are loaded at the start" in mistake(capsys, *several)
    status, out, err = run(capsys, *several, "--max-loaded", "2")
    assert (status, err) == (0, "")
    assert "models that are loaded at the start use " in out
    for command in ("serve", "topology"):
        assert "--max-loaded needs --models" in mistake(capsys, command, model, "--max-loaded", "2")
