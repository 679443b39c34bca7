"""What the operator is told of the activations that weights are multiplied by."""

from numaserve.workers.layers.stored import GGUF_BLOCKS
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.products import products_text

from tests.support.configured import configured
from tests.support.machines import OPTIONS, machine


def test_a_deployment_says_what_its_weights_are_multiplied_by() -> None:
    stored = {"layers.0.self_attn.o_proj": GGUF_BLOCKS["q4_0"], "layers.1.mlp.down_proj": GGUF_BLOCKS["mxfp4"]}
    found = make_deployment(OPTIONS, configured(stored=stored), machine(2)).multiplied_by
    assert products_text(found) == "mxfp4 times bf16 activations; int4 times int8 activations"


def test_nothing_is_said_of_weights_that_leave_no_choice() -> None:
    found = make_deployment(OPTIONS, configured(), machine(2)).multiplied_by
    assert products_text(found) == ""
