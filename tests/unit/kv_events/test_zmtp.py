"""ZMTP's frames."""

import random

import pytest
from numaserve.server.kv_events import zmtp
from numaserve.server.kv_events.zmtp import Decoder, Frame, Violation


@pytest.mark.parametrize("seed", range(4))
def test_frames_are_the_same_however_their_bytes_come(seed: int) -> None:
    chance = random.Random(seed)
    messages = [
        [chance.randbytes(chance.choice([0, 1, 255, 256, zmtp.MAX_FRAME])) for _ in range(chance.randrange(1, 4))]
        for _ in range(50)
    ]
    sent = zmtp.GREETING + b"".join(b"".join(zmtp.message(*frames)) for frames in messages)
    decoder, found = Decoder(), list[Frame]()
    while sent:
        size = chance.choice([1, 2, 9, 300, 5000])
        found += decoder.feed(sent[:size])
        sent = sent[size:]
    assert found == [
        Frame(body, index + 1 < len(frames), command=False) for frames in messages for index, body in enumerate(frames)
    ]


@pytest.mark.parametrize("frame", [b"\2" + (zmtp.MAX_FRAME + 1).to_bytes(8, "big"), b"\x80\0", b"\x08\0"])
def test_a_frame_that_is_too_long_or_of_an_unknown_kind_is_refused_by_its_head(frame: bytes) -> None:
    with pytest.raises(Violation):
        list(Decoder().feed(zmtp.GREETING + frame))


def test_the_type_of_a_socket_is_found_among_other_properties_in_any_case() -> None:
    properties = b"\x01X\0\0\0\x02yy\x0bsocket-TYPE\0\0\0\x03SUB"
    (frame,) = Decoder().feed(zmtp.GREETING + b"".join(zmtp.command(b"READY", properties)))
    assert zmtp.socket_type_in(frame) == b"SUB"
