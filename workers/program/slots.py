"""The settings of a new sequence in a Program, and the indices and uses of its rows in a step."""

from typing import Any, Literal

from numaserve.workers.interface.protocol import SlotInit

# Indices of rows in tables, which operations name: of the token, of its position, of the text that it is from, and
# three rotary coordinates, which differ from each other in images alone (Wang et al., 2024, M-RoPE).
RowIndex = Literal["token", "position", "type", "time", "height", "width"]

END_SAMPLE, END_POOL, END_POOL_TOKENS = 1, 2, 3  # 0: nothing


def slot_settings(init: SlotInit) -> dict[str, Any]:
    """The settings that `init_slot` takes."""
    s = init.sampling
    others = {name: getattr(init, name) for name in SlotInit.__struct_fields__ if name != "sampling"}
    return others | {
        "temperature": s.temperature,
        "top_k": s.top_k,
        "top_p": s.top_p,
        "min_p": s.min_p,
        "repetition_penalty": s.repetition_penalty,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "seed": s.seed,
        "bias_ids": list(s.logit_bias),
        "bias_values": list(s.logit_bias.values()),
        "num_logprobs": s.logprobs,
        "min_position": s.min_position,
        "suppress": s.suppress,
        "masked": s.masked,
        "token_ids_logprob": s.token_ids_logprob,
        "penalties": s.has_penalties,
    }
