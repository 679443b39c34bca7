"""Files of torch with tensors: what is read, and that nothing in them is executed."""

import os
import pickle
import random
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.config.torch_file import read_torch_file

from tests.support.token_heads import random_heads


def saved(path: Path, value: object, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


def rewritten(path: Path, changes: Mapping[str, bytes | None], compression: int = zipfile.ZIP_STORED) -> Path:
    """The archive at `path` with other bytes in some entries, or without them."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename.partition("/")[2]: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in (entries | dict(changes)).items():
            if content is not None:
                archive.writestr(f"model/{name}", content)
    return path


def pickled(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")])
def test_tensors_have_their_type_shape_and_bytes(dtype: torch.dtype, name: str, tmp_path: Path) -> None:
    layer = random_heads(8, 5).vectors.to(dtype)
    for value in (layer.state_dict(), dict(layer.state_dict())):
        found = read_torch_file(saved(tmp_path / "a.pt", value))
        assert {key: (each.dtype, each.shape) for key, each in found.items()} == {
            "weight": (name, (5, 8)),
            "bias": (name, (5,)),
        }
        for key, each in found.items():
            assert each.data == bytes(value[key].view(torch.uint8).numpy())


def test_tensors_may_be_parts_of_one_storage(tmp_path: Path) -> None:
    whole = torch.arange(12, dtype=torch.float32)
    found = read_torch_file(saved(tmp_path / "a.pt", {"a": whole[2:8].view(3, 2), "b": whole[8:], "c": whole[:0]}))
    values = {name: np.frombuffer(each.data, np.float32).reshape(each.shape).tolist() for name, each in found.items()}
    assert values == {"a": [[2, 3], [4, 5], [6, 7]], "b": [8, 9, 10, 11], "c": []}


class _Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._calls = call, arguments

    def __reduce__(self) -> Any:
        return self._calls


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("call", [os.system, eval, exec, __import__, sys.exit, getattr])
def test_nothing_is_executed(call: Callable[..., Any], protocol: int, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"weight": torch.zeros(2)})
    mark = tmp_path / "executed"
    arguments = ("touch " if call is os.system else "") + str(mark)
    for value in (_Calls(call, arguments), {"weight": _Calls(call, arguments)}):
        with pytest.raises(OperatorError, match=f"{path}: not a file of torch with tensors alone"):
            read_torch_file(rewritten(path, {"data.pkl": pickle.dumps(value, protocol)}))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([torch.zeros(2)], "it has the operation EMPTY_LIST"),
        (torch.zeros(2), "it is not a dictionary of tensors"),
        ({"a": 1}, "it is not a dictionary of tensors"),
        ({"a": {"b": torch.zeros(2)}}, "it is not a dictionary of tensors"),
        ({1: torch.zeros(2)}, "it is damaged: items are not added to a dictionary by name"),
        ({"a": torch.zeros(2, dtype=torch.int64)}, "it names 'torch LongStorage'"),
        ({"a": torch.zeros(2, dtype=torch.float64)}, "it names 'torch DoubleStorage'"),
        ({"a": torch.nn.Parameter(torch.zeros(2))}, "it names 'torch._utils _rebuild_parameter'"),
        ({"a": torch.zeros(2, 2, 2)}, "it has a tensor of an impossible size"),
        ({"a": torch.zeros(3, 2).t()}, "it has a tensor that is not contiguous"),
        ({"a": torch.zeros(3, 4)[:, :2]}, "it has a tensor that is not contiguous"),
        ({"a": torch.zeros(1).expand(9)}, "it has a tensor that is not contiguous"),
    ],
)
def test_other_content_is_refused(value: object, message: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", value)
    with pytest.raises(OperatorError, match=rf"{path}: not a file .*\({re.escape(message)}.*remove it to serve"):
        read_torch_file(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.pkl": None}, "it has no data.pkl"),
        ({"data/0": None}, "it has no entry 'data/0'"),
        ({"data/0": b"1234"}, "the entry 'data/0' has 4 bytes, not those of its numbers"),
        ({"data.pkl": b""}, "it is damaged: it has no end"),
        ({"data.pkl": b"\x80\x02\xff."}, "it has an unknown operation"),
        ({"data.pkl": b"\x80\x02."}, "it is not a dictionary of tensors"),
        ({"data.pkl": b"\x80\x02}}."}, "it is not a dictionary of tensors"),
        ({"data.pkl": b"\x80\x02h\x05."}, "names an object that does not exist"),
        ({"data.pkl": b"\x80\x02R."}, "an operation lacks its operand"),
        ({"data.pkl": b"\x80\x02" + b"}0" * 6000 + b"}."}, "it has the operation POP"),
        ({"data.pkl": b"\x80\x02" + b")" * 11_000 + b"."}, "it has more than 10000 operations"),
        ({"data.pkl": b"\x80\x02" + b"X\xff\xff\xff\x7f" + b"."}, "it is damaged"),
        ({"data.pkl": b"}" * (1 << 17)}, "has 131072 bytes (limit 65536)"),
        ({"byteorder": b"big"}, "its numbers are not little-endian"),
        ({f"data/{number}": b"" for number in range(1, 80)}, "entries (limit 64)"),
    ],
)
def test_damaged_archives_are_refused(changes: Mapping[str, bytes | None], message: str, tmp_path: Path) -> None:
    path = rewritten(saved(tmp_path / "a.pt", {"weight": torch.zeros(2)}), changes)
    with pytest.raises(OperatorError, match=re.escape(message)):
        read_torch_file(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x02}.", b"x" * 1000, None])
def test_what_is_no_archive_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    if content is None:  # the form before torch 1.6
        saved(path, {"weight": torch.zeros(2)}, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes(content)
    with pytest.raises(OperatorError, match=r"not a zip archive of torch .*save it with torch 1.6 or later"):
        read_torch_file(path)


def test_compressed_and_doubled_entries_are_refused(tmp_path: Path) -> None:
    path = rewritten(saved(tmp_path / "a.pt", {"weight": torch.zeros(2)}), {}, zipfile.ZIP_DEFLATED)
    with pytest.raises(OperatorError, match="is compressed or encrypted"):
        read_torch_file(path)
    content = pickled(saved(path, {"weight": torch.zeros(2)}))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", content)
    with pytest.raises(OperatorError, match=r"it has the entry 'data.pkl' twice"):
        read_torch_file(path)


def _damaged(content: bytes, rng: random.Random) -> bytes:
    """`content` with a few bytes changed, cut or repeated."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        match rng.randrange(5):
            case 0:
                data[at:end] = b""
            case 1:
                data[at:at] = data[at : at + rng.randint(1, 64)]
            case 2 if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
            case 3 if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case _:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_files_are_read_or_refused(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, path = random.Random(seed), saved(tmp_path / "a.pt", random_heads(6, 3).vectors.half().state_dict())
    whole, inner = path.read_bytes(), pickled(path)
    # Nothing that a pickle could name is reached.
    for module, name in ((pickle, "loads"), (pickle, "load"), (torch, "load"), (os, "system")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("something is executed"))
    outcomes = {"read": 0, "refused": 0}
    for turn in range(400):
        if turn % 2:
            path.write_bytes(_damaged(whole, rng))
        else:
            path.write_bytes(whole)
            rewritten(path, {"data.pkl": _damaged(inner, rng)})
        try:
            found = read_torch_file(path)
        except OperatorError as error:
            assert str(error).startswith(f"{path}: not a ")
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
            for each in found.values():
                assert len(each.data) == np.prod(each.shape, dtype=int) * {"f32": 4, "f16": 2, "bf16": 2}[each.dtype]
    assert min(outcomes.values()) > 0, outcomes
