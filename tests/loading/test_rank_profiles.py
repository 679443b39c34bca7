import pytest
from numaserve.workers.interface.protocol import (
    Ceilings,
    OperationProfile,
    ProfileRequest,
    ProtocolError,
    RankProfile,
    decode_from_worker,
    decode_to_worker,
    encode,
)
from numaserve.workers.process.rank_program import by_operation

OPERATIONS = [
    OperationProfile("linear", "int8", 6, 7, 0, 8, 9, 10),
    OperationProfile("add_all_reduce", "bf16", 6, 70, 60, 0, 0, 0),
]


def test_nodes_of_one_name_are_added_up_and_keep_the_order_of_the_program() -> None:
    layers = [("linear", "int8", 10, 0, 4, 12, 100), ("add_all_reduce", "bf16", 7, 5, 0, 0, 0)] * 2
    nodes = [("embed", "bf16", 1, 0, 0, 0, 0), *layers, ("linear", "int8", 20, 0, 6, 18, 300)]
    assert by_operation(3, nodes) == [
        OperationProfile("embed", "bf16", calls=3, ns=1, wait_ns=0, weight_bytes=0, bytes=0, flops=0),
        OperationProfile("linear", "int8", calls=9, ns=40, wait_ns=0, weight_bytes=14, bytes=42, flops=500),
        OperationProfile("add_all_reduce", "bf16", calls=6, ns=14, wait_ns=10, weight_bytes=0, bytes=0, flops=0),
    ]


@pytest.mark.parametrize("ceilings", [None, Ceilings("amx", 8, 1.5e11, {"bf16": 2.5e13})])
def test_a_profile_comes_back_as_it_was_sent(ceilings: Ceilings | None) -> None:
    profile = RankProfile(5, 1, steps=3, tokens=9, native_ns=2**40, operations=OPERATIONS, ceilings=ceilings)
    assert decode_from_worker(encode(profile)) == profile


def test_a_request_for_a_profile_is_a_message_to_a_worker_only() -> None:
    request = ProfileRequest(7, ceilings=True)
    assert decode_to_worker(encode(request)) == request
    with pytest.raises(ProtocolError):
        decode_from_worker(encode(request))
