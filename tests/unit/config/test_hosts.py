"""The hosts file, and one line for each mistake in it."""

from pathlib import Path

import pytest
from numaserve.server.config.hosts import read_hosts
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.host_links import Address, keys_of

KEY = f"public-{'7e' * 32}"
SECRET = f"secret-{'01' * 32}"


def written(folder: Path, stages: str, more: str = "key-file: k\n") -> Path:
    file = folder / "hosts.yaml"
    file.write_text(f"{more}stages: {stages}\n")
    return file


def test_each_stage_has_its_host(tmp_path: Path) -> None:
    stages = f"[here, {{agent: 'b:7000', public-key: {KEY}}}, {{agent: '[fd00::2]:1', public_key: {KEY}, model: /m}}]"
    key_file, (first, second, third) = read_hosts(written(tmp_path, stages))
    assert (key_file, first) == (Path("k"), None)
    assert second is not None
    assert third is not None
    assert (second.agent, second.public_key, second.model) == (Address("b", 7000), KEY, None)
    assert (third.agent, third.model) == (Address("[fd00::2]", 1), Path("/m"))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("[here]", "stages"),
        (f"[{{agent: 'b:7000', public-key: {KEY}}}, here]", "only the first stage can be 'here'"),
        ("[here, there]", "stage 1 must be 'here', or have the keys 'agent' and 'public-key'"),
        (
            f"[here, {{agent: b, public-key: {KEY}}}]",
            "stage 1: agent must be HOST:PORT, such as 10.0.0.2:7000",
        ),
        (f"[here, {{agent: 'b:70000', public-key: {KEY}}}]", "must be HOST:PORT"),
        ("[here, {agent: 'b:1', public-key: k}]", "must be public- and 64 hexadecimal digits"),
        (f"[here, {{agent: 'b:1', public-key: {SECRET}}}]", "public_key is a secret key, which may"),
        ("[here, {agent: 'b:1'}]", "'public_key' is not set"),
        (f"[here, {{agent: 'b:1', public-key: {KEY}, port: 1}}]", "stage 1: unknown key 'port'"),
    ],
)
def test_a_mistake_is_named_with_its_stage(stages: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError) as mistake:
        read_hosts(written(tmp_path, stages))
    assert message in str(mistake.value)
    assert SECRET not in str(mistake.value)


def test_a_secret_key_has_its_public_key() -> None:
    assert keys_of(SECRET).secret == SECRET
    assert keys_of(SECRET).public.startswith("public-")
    with pytest.raises(ValueError, match="must be secret- and 64"):
        keys_of(KEY)
