from pathlib import Path

import pytest
from numaserve.configs import hosts, presets
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.roofline.machine import Machine, load_machine

TEXT = """
name: two small nodes
node-cores: [3, 2]
node-memory-gib: 4
node-read-gb-s: 50
core-gflop-s: {bf16: 100, int8: 200}
link-gb-s: 10
meeting-us: 1
barrier-us: 0.5
"""


def write(folder: Path, text: str) -> str:
    path = folder / "machine.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", hosts())
def test_every_shipped_machine_is_a_description(name: str) -> None:
    machine = load_machine(name)
    assert machine.isa == ("avx512" if name.startswith("epyc") else "amx")
    assert sum(machine.node_cores) in {64, 96, 128, 192, 256}
    assert machine.core_gflop_s["int8"] == pytest.approx(2 * machine.core_gflop_s["bf16"], rel=1e-3)


@pytest.mark.parametrize("name", ["6980p", "6972p", "8592+"])
def test_two_sockets_are_twice_the_cores_of_one(name: str) -> None:
    one, two = load_machine(name), load_machine(f"2x{name}")
    assert two.node_cores == one.node_cores * 2
    assert two.node_read_gb_s == one.node_read_gb_s


def test_machines_are_no_presets_of_the_server() -> None:
    assert not set(hosts()) & set(presets())


def test_a_file_describes_a_machine(tmp_path: Path) -> None:
    machine = load_machine(write(tmp_path, TEXT))
    nodes = machine.topology().nodes
    assert [len(node.cpus) for node in nodes] == [3, 2]
    assert {node.free_bytes for node in nodes} == {4 << 30}
    assert len({cpu for node in nodes for cpu in node.cpus}) == 5


def test_integer_formats_have_the_peak_of_int8(tmp_path: Path) -> None:
    machine = load_machine(write(tmp_path, TEXT))
    assert machine.peak(3, "int4") == machine.peak(3, "int8") == 600e9
    assert machine.peak(3, "fp8") == machine.peak(3, "bf16") == 300e9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "node-cpus: 3\n", r"node-cpus: unknown key; the keys are name, isa, node-cores"),
        (TEXT.replace("link-gb-s: 10", ""), "link-gb-s: Field required"),
        (TEXT.replace("[3, 2]", "[3, 0]"), r"node-cores\.1: Input should be greater than or equal to 1"),
        (TEXT.replace("{bf16: 100, int8: 200}", "{bf16: 100}"), "core-gflop-s: .*bf16 and int8"),
        (TEXT + "isa: avx\n", "isa: Input should be 'amx' or 'avx512'"),
        ("[1", "is not a YAML file"),
        ("3", "Input should be a valid dictionary"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_it(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=message):
        load_machine(write(tmp_path, text))


def test_an_unknown_host_is_answered_with_those_there_are() -> None:
    with pytest.raises(OperatorError, match=r"--host 6980: unknown host; expected this, .*2x6980p"):
        load_machine("6980")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(OperatorError, match=r"nowhere.yaml: cannot be read"):
        load_machine("nowhere.yaml")


def test_keys_may_be_written_with_underscores() -> None:
    assert Machine.model_validate(load_machine("6980p").model_dump()) == load_machine("6980p")
