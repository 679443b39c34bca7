"""Changes of what lies in an input: what changes bytes finds its way past a parser once in a thousand times."""

import copy
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        7,
        31,
        32,
        1 << 16,
        1 << 31,
        1 << 63,
        10**400,
        -(1 << 63),
        0.5,
        -0.0,
        1e308,
        1e-320,
    ),
    *(
        "",
        "a",
        "\0",
        "\ud800",
        "x" * 300,
        "null",
        [],
        {},
        [[]],
        [{}],
        {"": {}},
        [1, 2],
        ["a"],
        [None],
        {"type": "object"},
    ),
)


# What an input holds, and an input that holds it; the first raises where there is no such thing in it.
Codec = tuple[Callable[[bytes], Any], Callable[[bytes, Any], bytes]]


def _header(data: bytes) -> tuple[bytes, bytes]:
    """The header of a safetensors file, and the rest."""
    end = 8 + int.from_bytes(data[:8], "little")
    return data[8:end], data[end:]


def _with_header(data: bytes, value: Any) -> bytes:
    header = json.dumps(value).encode()
    return len(header).to_bytes(8, "little") + header + _header(data)[1]


_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIZES = ">IIBBBBB"  # of an image, and how its pixels are stored


def _chunks(data: bytes) -> list[Any]:
    """The types and contents of a PNG file's chunks; the first has numbers."""
    if not data.startswith(_SIGNATURE):
        raise ValueError("another format")
    chunks, place = list[Any](), len(_SIGNATURE)
    while place < len(data):
        end = place + 8 + int.from_bytes(data[place : place + 4], "big")
        kind, content = data[place + 4 : place + 8].decode("latin-1"), data[place + 8 : end]
        numbers = kind == "IHDR" and len(content) == struct.calcsize(_SIZES)
        chunks.append([kind, [*struct.unpack(_SIZES, content)] if numbers else content.decode("latin-1")])
        place = end + 4
    return chunks


def _with_chunks(_: bytes, value: Any) -> bytes:
    """The file of such chunks, with the checksums of what they hold now."""
    data = _SIGNATURE
    try:
        for kind, content in value:
            inside = kind.encode("latin-1")[:4].ljust(4)
            inside += content.encode("latin-1") if isinstance(content, str) else struct.pack(_SIZES, *content)
            data += struct.pack(">I", len(inside) - 4) + inside + struct.pack(">I", zlib.crc32(inside))
    except (AttributeError, TypeError, struct.error) as error:
        raise ValueError("no chunks") from error
    return data


CODECS: Mapping[str, Codec] = {
    "model-config": (json.loads, lambda _, value: json.dumps(value).encode()),
    "model-folder": (json.loads, lambda _, value: json.dumps(value).encode()),
    "settings": (json.loads, lambda _, value: json.dumps(value).encode()),  # which is YAML, too
    "grammars": (lambda data: json.loads(data[1:]), lambda data, value: data[:1] + json.dumps(value).encode()),
    "images": (_chunks, _with_chunks),
    "safetensors": (lambda data: json.loads(_header(data)[0]), _with_header),
    "frames": (
        lambda data: msgspec.msgpack.decode(data[1:], strict=False),
        lambda data, value: data[:1] + msgspec.msgpack.encode(value),
    ),
}


def mutated(data: bytes, size: int, seed: int, codec: Codec, otherwise: Callable[[bytes, int], bytes]) -> bytes:
    """`data` with some of what it holds changed; one in four, and what holds nothing, as `otherwise` changes it."""
    choice = random.Random(seed)
    decode, encode = codec
    try:
        value = decode(data)
    except (ValueError, RecursionError):
        return otherwise(data, size)
    if choice.random() < 0.25:
        return otherwise(data, size)
    try:
        for _ in range(choice.choice((1, 1, 2, 5))):
            value = _changed(value, choice)
        return encode(data, value)[:size]
    except (ValueError, OverflowError, RecursionError):  # what cannot be written, or computed, or is too deep
        return otherwise(data, size)


def _changed(value: Any, choice: random.Random) -> Any:
    places = [*_places(value)]
    if not places:
        return choice.choice(_VALUES)
    holder, key = choice.choice(places)
    other_holder, other_key = choice.choice(places)
    action = choice.randrange(5)
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[key] = copy.deepcopy(other_holder[other_key])
    elif action == 2 and isinstance(holder, dict):
        holder[choice.choice([str(key) + "_", str(other_key), "type"])] = holder.pop(key)
    elif action == 3 and type(holder[key]) in {int, float}:
        holder[key] = holder[key] * choice.choice((-1, 2, 3)) + choice.choice((-1, 0, 1, 0.5))
    else:
        holder[key] = choice.choice(_VALUES)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each holder and key in `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in [*items]:
        yield value, key
        yield from _places(inner)
