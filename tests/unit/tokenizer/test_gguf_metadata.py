import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.files.gguf_metadata import read_metadata
from numaserve.server.tokenizer.types import TokenizerError
from numaserve.workers.interface.errors import OperatorError

from tests.support.tokenizer_builders import write_sentencepiece_gguf

STRING, ARRAY, UINT32 = (
    int(kind) for kind in (gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
)


def header(count: int, version: int = 3) -> bytes:
    return struct.pack("<IIQQ", gguf.GGUF_MAGIC, version, 0, count)


def string(text: bytes, claimed: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if claimed is None else claimed) + text


def test_a_file_reads_as_with_the_gguf_package(tmp_path: Path) -> None:
    path = write_sentencepiece_gguf(tmp_path / "model.gguf", add_bos_token=False)
    reader = gguf.GGUFReader(path)
    expected = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert read_metadata(path) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF",
        b"not a model file, but long enough to be one",
        header(0, version=1),
        header(1),
        header(2**63),
        header(1) + string(b"key", claimed=2**62),
        header(1) + string(b"key") + struct.pack("<I", 99),
        header(1) + string(b"\xff") + struct.pack("<II", UINT32, 1),
        header(1) + string(b"key") + struct.pack("<I", UINT32),
        header(1) + string(b"key") + struct.pack("<IIQ", ARRAY, UINT32, 2**62),
        header(1) + string(b"key") + struct.pack("<IIQ", ARRAY, STRING, 2**62),
        header(1) + string(b"key") + struct.pack("<IIQ", ARRAY, ARRAY, 1),
    ],
)
def test_a_file_that_lies_about_itself_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match="not a valid GGUF file"):
        read_metadata(path)


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    for name in ("empty.gguf", "missing.gguf"):
        with pytest.raises(OperatorError, match=name):
            read_metadata(tmp_path / name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_a_damaged_file_either_loads_or_is_refused_in_words(tmp_path: Path, data: st.DataObject) -> None:
    path = write_sentencepiece_gguf(tmp_path / "model.gguf")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        tokenizer = load_tokenizer(path)
    except TokenizerError as error:
        assert str(path) in str(error) or "pre-tokenizer" in str(error)
    else:
        assert isinstance(tokenizer.encode("the 123"), list)
