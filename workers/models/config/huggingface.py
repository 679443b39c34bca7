"""Fields of config.json that every family reads in the same way, and the layers that are the same in most of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numaserve.workers.layers.axes import attention_heads
from numaserve.workers.layers.block import Block
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.embedding import Embedding, Head
from numaserve.workers.layers.layer import FeedForward, Mixer
from numaserve.workers.layers.mixers.attention import Attention, Biases
from numaserve.workers.layers.mixers.mask import Mask, Sinks
from numaserve.workers.layers.mixers.query_key_norms import AllHeadsNorms, HeadNorms
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import Mlp
from numaserve.workers.layers.norm import DividedNorm, NoNorm, Norm
from numaserve.workers.layers.predictor import Predictor
from numaserve.workers.models.config.direction import is_bidirectional, refuse_bidirectional
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.rope import MAX_POSITION, read_rope
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.products import GateActivation
from numaserve.workers.program.rope import RopeConfig

# Far above any published model, far below what would overflow an index or exhaust memory while planning.
_MAX_HIDDEN = 2**17
MAX_LAYERS = 2**10
_MAX_HEADS = 2**10
_MAX_HEAD_DIM = 512
MAX_INTERMEDIATE = 2**20
_MAX_VOCAB = 2**22

_ACTIVATIONS: dict[str, GateActivation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
# Fields of `ModelConfig` for a multimodal checkpoint, of which only the text is served.
MULTIMODAL: dict[str, Any] = {
    "prefixes": ("model.", "language_model.model.", "model.language_model."),
    "ignored_prefixes": (
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ),
}


@dataclass(frozen=True)
class Common:
    """The fields that all families spell alike, and layers made of them.

    Keyword arguments of the methods replace single fields of the layers.
    """

    fields: Fields
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    layers: int
    vocabulary: int
    eps: float
    max_position: int
    tied: bool
    plus_one: bool = False  # the checkpoint has the weights of norms minus one
    bidirectional: bool = False  # tokens see later ones

    @cached_property
    def rope(self) -> RopeConfig:
        """The rotary embedding of models with one kind of it. It is read on demand, because some families have their
        own spelling, which this could refuse."""
        return read_rope(self.fields, self.head_dim)

    def norm(self, module: str, gguf: str, **changes: Any) -> Norm:
        """A norm over the hidden size."""
        return Norm(module, self.hidden, self.eps, gguf, **{"plus_one": self.plus_one} | changes)

    def attention(self, layer: int, made: type[Attention] = Attention, **changes: Any) -> Attention:
        """Attention, of the class `made`, without biases, windows or norms of queries and keys."""
        if "rotation" not in changes:
            changes["rotation"] = Rotation(self.rope)
        values: dict[str, Any] = {
            "at": f"layers.{layer}.",
            "hidden": self.hidden,
            "query_heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "scale": self.head_dim**-0.5,
        }
        return made(**values | changes)

    def head_norms(
        self,
        layer: int,
        q: str = "self_attn.q_norm",
        k: str = "self_attn.k_norm",
        *,
        after_rotation: bool = False,
    ) -> HeadNorms:
        """Norms of each query head and of each key head, by the modules `q` and `k`."""
        at = f"layers.{layer}."
        q_norm = Norm(at + q, self.head_dim, self.eps, f"{at}attn_q_norm", self.plus_one)
        k_norm = Norm(at + k, self.head_dim, self.eps, f"{at}attn_k_norm", self.plus_one)
        return HeadNorms(q_norm, k_norm, after_rotation)

    def all_heads_norms(self, layer: int) -> AllHeadsNorms:
        """A norm over all query heads, and one over all key heads."""
        at, dim = f"layers.{layer}.", self.head_dim
        queries, keys = attention_heads(self.heads, self.kv_heads, dim)
        q_norm = DividedNorm(f"{at}self_attn.q_norm", queries, dim, self.eps, f"{at}attn_q_norm")
        return AllHeadsNorms(q_norm, DividedNorm(f"{at}self_attn.k_norm", keys, dim, self.eps, f"{at}attn_k_norm"))

    def sinks(self, layer: int, name: str = "self_attn.sinks", *, value_dim: int | None = None) -> Sinks:
        """A logit of each query head of attention with values of `value_dim` dimensions; None: as many as of a key."""
        at = f"layers.{layer}."
        queries, _ = attention_heads(self.heads, self.kv_heads, value_dim or self.head_dim)
        return Sinks(at + name, queries, f"{at}attn_sinks.weight")

    def mlp(self, layer: int, **changes: Any) -> Mlp:
        """A gated MLP."""
        if "activation" not in changes:
            changes["activation"] = read_activation(self.fields, "hidden_act", "silu")
        values: dict[str, Any] = {"intermediate": self.intermediate} | changes
        return Mlp(f"layers.{layer}.", self.hidden, **values)

    def mask(self, window: int | None = None, softcap: float | None = None) -> Mask:
        """A mask with a window, before a token or on either side of it; None: without one."""
        return Mask(window, softcap, bidirectional=self.bidirectional)

    def block(self, layer: int, mixer: Mixer, mlp: FeedForward | None = None, **norms: Norm | NoNorm) -> Block:
        """A layer with norms before attention and before the MLP."""
        at = f"layers.{layer}."
        values: dict[str, Any] = {
            "input_norm": self.norm(f"{at}input_layernorm", f"{at}attn_norm"),
            "mlp_norm": self.norm(f"{at}post_attention_layernorm", f"{at}ffn_norm"),
        }
        return Block(attention=mixer, mlp=mlp or self.mlp(layer), **values | norms)

    def model(self, family: str, architecture: str, block: Callable[[int], Block], **changes: Any) -> ModelConfig:
        """Return the whole model; `block` makes each layer, and the first of the `skipped_layers` too, which
        predict. The mean of a bidirectional model is pooled."""
        embedding = changes.pop("embedding", Embedding(self.vocabulary, self.hidden))
        norm = changes.pop("norm", self.norm("norm", "output_norm"))
        head = Head(embedding, self.tied, changes.pop("softcap", None))
        blocks = tuple(block(layer) for layer in range(self.layers))
        predictor = self._predictor(embedding, block(self.layers), head) if changes.get("skipped_layers") else None
        values: dict[str, Any] = {
            "architecture": architecture,
            "family": family,
            "decoder": Decoder(embedding, blocks, norm, head, predictor),
            "max_position": self.max_position,
            "eos_token_ids": self.fields.token_ids("eos_token_id", self.vocabulary),
            "bos_token_id": next(iter(self.fields.token_ids("bos_token_id", self.vocabulary)), None),
        }
        config = ModelConfig(**values | changes)
        return config.pooled("mean") if self.bidirectional else config

    def _predictor(self, embedding: Embedding, block: Block, head: Head) -> Predictor:
        at = f"layers.{self.layers}."
        norms = (("enorm", "enorm"), ("hnorm", "hnorm"), ("shared_head.norm", "shared_head_norm"))
        token, hidden, last = (self.norm(f"{at}{name}", f"{at}nextn.{gguf}") for name, gguf in norms)
        return Predictor(at, embedding, token, hidden, block, last, head)


def read_common(
    fields: Fields,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    plus_one: bool = False,
    either: bool = False,
) -> Common:
    """Return the common fields; `kv_heads` and `head_dim` replace the usual fields for families with other fields.
    With `either` the family masks its layers by `Common.mask`, and config.json may make the model bidirectional.

    Raises `OperatorError` for a missing field, a value out of range and for features that no family has.
    """
    _refuse_unsupported(fields)
    if not either:
        refuse_bidirectional(fields)
    heads = fields.integer("num_attention_heads", 1, _MAX_HEADS)
    if kv_heads is None:
        kv_heads = fields.integer("num_key_value_heads", 1, _MAX_HEADS, heads)
    if heads % kv_heads:
        raise fields.error(f"num_attention_heads={heads} must be a multiple of num_key_value_heads={kv_heads}")
    return Common(
        fields,
        hidden=fields.integer("hidden_size", 1, _MAX_HIDDEN),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=read_head_dim(fields) if head_dim is None else head_dim,
        intermediate=fields.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        layers=read_layer_count(fields),
        vocabulary=fields.integer("vocab_size", 1, _MAX_VOCAB),
        eps=fields.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        max_position=fields.integer("max_position_embeddings", 1, MAX_POSITION),
        tied=fields.flag("tie_word_embeddings", False),
        plus_one=plus_one,
        bidirectional=either and is_bidirectional(fields),
    )


def read_text(fields: Fields, *, tied: bool = True) -> Fields:
    """Return the text model's fields of a multimodal config.json. If the text model has no begin or end tokens, those
    of the outer object are used. Whether the head is tied is read from the outer object alone, with `tied` as the
    default, as in the classes of transformers."""
    outer = {key: fields.values[key] for key in ("eos_token_id", "bos_token_id") if fields.has(key)}
    is_tied = fields.flag("tie_word_embeddings", tied)
    return fields.child("text_config").with_defaults(**outer).with_values(tie_word_embeddings=is_tied)


def read_head_dim(fields: Fields) -> int:
    """The width of a head: `head_dim`, or an equal part of the hidden size."""
    heads = fields.integer("num_attention_heads", 1, _MAX_HEADS)
    hidden = fields.integer("hidden_size", 1, _MAX_HIDDEN)
    if not fields.has("head_dim") and hidden % heads:
        raise fields.error(f"head_dim is missing and hidden_size={hidden} is not a multiple of {heads} heads")
    return fields.integer("head_dim", 2, _MAX_HEAD_DIM, hidden // heads)


def read_sliding_window(fields: Fields, default: int | None = None) -> int | None:
    """`sliding_window`, `default` where it is missing; None where it is null or covers the longest context."""
    if "sliding_window" in fields.values:
        default = None
    window = fields.optional_integer("sliding_window", 1, MAX_POSITION) or default
    # transformers allows a difference q - k < window: a window as long as the context hides nothing.
    longest = fields.integer("max_position_embeddings", 1, MAX_POSITION)
    return None if window is None or window >= longest else window


def read_rotated(fields: Fields, layers: int) -> list[bool]:
    """Return whether each layer is rotated: despite its name, `no_rope_layers` has a 1 for layers that are."""
    if fields.has("no_rope_layers"):
        listed = fields.integers("no_rope_layers", 0, 1)
        if len(listed) < layers:
            raise fields.error(f"no_rope_layers has {len(listed)} entries for {layers} layers")
        return [bool(each) for each in listed[:layers]]
    interval = fields.integer("no_rope_layer_interval", 1, MAX_LAYERS, 4)
    return [bool((layer + 1) % interval) for layer in range(layers)]


def read_layer_kinds(fields: Fields, default: Sequence[bool], *, name: str = "sliding_attention") -> list[bool]:
    """Return whether each layer slides: `layer_types`, in which such a layer has the `name`, or `default` where it is
    missing."""
    if not fields.has("layer_types"):
        return list(default)
    kinds = fields.texts("layer_types", len(default))
    known = ("full_attention", name)
    unknown = sorted(set(kinds) - set(known))
    if unknown:
        raise fields.error(
            f"layer_types holds {unknown[0]!r}, which is not supported; supported values: {', '.join(known)}"
        )
    return [kind == name for kind in kinds]


def windows_of(slides: Sequence[bool], window: int | None) -> list[int | None]:
    """Return the window of each layer: `window` tokens for layers that slide, None for layers that see all tokens
    before."""
    return [window if each else None for each in slides]


def read_windows(fields: Fields, default: int | None = None) -> list[int | None]:
    """Return the window of each layer: all layers slide, or those that `layer_types` names.

    `default` is as for `read_sliding_window`.
    """
    window = read_sliding_window(fields, default)
    return windows_of(read_layer_kinds(fields, [window is not None] * read_layer_count(fields)), window)


def read_biases(fields: Fields, *, default: bool = False, of: Biases = "all") -> Biases:
    """Return `of` where `attention_bias` is set: the projections of attention that have biases."""
    return of if fields.flag("attention_bias", default) else "none"


def read_activation(fields: Fields, key: str, default: str) -> GateActivation:
    """The MLP's activation from field `key`."""
    return fields.choice(key, _ACTIVATIONS, default)


def read_layer_count(fields: Fields) -> int:
    """The number of layers."""
    return fields.integer("num_hidden_layers", 1, MAX_LAYERS)


def _refuse_unsupported(fields: Fields) -> None:
    fields.refuse("mlp_bias", False)
    fields.refuse("attention_chunk_size")
    fields.refuse("is_encoder_decoder", False)
