"""The vocabulary of a forward pass in plain numpy: runs what a family appends, at once and in fp32, to compare it with
transformers without any kernel in between. Ranks are threads that meet in the sums."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.parameters import MatrixParameter, VectorParameter
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.program.experts import ExpertMatrices
from numaserve.workers.program.handles import Rope
from numaserve.workers.program.ops.experts import Routing
from numaserve.workers.program.rope import RopeConfig

from tests.support.loaded import Loaded

Floats = npt.NDArray[np.float32]


@dataclass
class VectorValues:
    """Stands in for the kernels' Vector, which keeps its values to itself."""

    values: Floats


@dataclass
class RopeValues:
    """Stands in for the kernels' RopeTable."""

    cos: Floats
    sin: Floats


@dataclass
class Ranks:
    """Where the threads of a group add up their parts, in rank order."""

    world_size: int
    barrier: threading.Barrier = field(init=False)
    parts: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.world_size, timeout=60)
        self.parts = [None] * self.world_size

    def gather(self, rank: int, part: Floats) -> list[Floats]:
        self.parts[rank] = part
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts


class NumpyBuilder:
    """One rank's program over one sequence, `tokens`, from position 0; `logits` is [tokens, vocabulary]."""

    def __init__(self, part: RankPart, tokens: npt.NDArray[np.int64], ranks: Ranks) -> None:
        self.rank, self.tokens, self.ranks = part.rank, tokens, ranks
        decoder = part.partition.model
        assert isinstance(decoder, Decoder)
        self.shape = decoder.shape(part)
        self.keys_values: dict[int, tuple[Floats, Floats]] = {}
        self.logits: Floats = np.empty((0, 0), np.float32)
        self.sampled = False

    def _sum(self, part: Floats) -> Floats:
        return np.sum(self.ranks.gather(self.rank, part), axis=0, dtype=np.float32)

    def embed(self, table: Any, *, first_row: int, scale: float = 1.0) -> Floats:
        rows = table.to_numpy()
        mine = (self.tokens >= first_row) & (self.tokens < first_row + len(rows))
        out = np.zeros((len(self.tokens), table.k), np.float32)
        out[mine] = rows[self.tokens[mine] - first_row] * np.float32(scale)
        return self._sum(out)

    def rms_norm(self, x: Floats, weight: VectorValues, eps: float) -> Floats:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * weight.values

    def linear(self, x: Floats, weight: Any, bias: VectorValues | None = None) -> Floats:
        return x @ weight.to_numpy().T + (0 if bias is None else bias.values)

    def latents(self, x: Floats, weight: Any, bounds: tuple[int, ...] = ()) -> Floats:
        mine = self.linear(x, weight)
        if not bounds:
            return mine
        return np.concatenate(self.ranks.gather(self.rank, mine), axis=-1)

    def split(self, x: Floats, *widths: int) -> list[Floats]:
        return np.split(x, np.cumsum(widths), axis=-1)

    def qkv_rope(
        self,
        qkv: Floats,
        *,
        layer: int,
        rope: RopeValues,
        q_norm: VectorValues | None = None,
        k_norm: VectorValues | None = None,
        eps: float = 0.0,
    ) -> Floats:
        heads, kv = self.shape.q_heads, self.shape.kv_heads
        split = qkv.reshape(len(qkv), heads + 2 * kv, self.shape.head_dim)
        q, k, v = split[:, :heads], split[:, heads : heads + kv], split[:, heads + kv :]
        if q_norm is not None and k_norm is not None:
            q, k = self.rms_norm(q, q_norm, eps), self.rms_norm(k, k_norm, eps)
        self.keys_values[layer] = (self._rotate(k, rope), v)
        return self._rotate(q, rope)

    def _rotate(self, x: Floats, rope: RopeValues) -> Floats:
        half = rope.cos.shape[1]
        cos, sin = rope.cos[: len(x), None], rope.sin[: len(x), None]
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    def attention(
        self,
        q: Floats,
        *,
        layer: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: VectorValues | None = None,
    ) -> Floats:
        keys, values = self.keys_values[layer]
        if q.shape[1] == 0:
            return np.zeros((len(q), 0), np.float32)
        group = q.shape[1] // keys.shape[1]
        keys, values = (np.repeat(part, group, axis=1) for part in (keys, values))
        scores = np.einsum("thd,shd->hts", q, keys) * np.float32(scale)
        if softcap is not None:
            scores = np.tanh(scores / softcap) * softcap
        behind = np.arange(len(q))[:, None] - np.arange(len(q))[None, :]
        seen = (behind >= 0) & (behind < (window or len(q)))
        scores = np.where(seen, scores, -np.inf)
        peak = scores.max(-1, keepdims=True)
        weights = np.exp(scores - peak)
        sink = 0.0 if sinks is None else np.exp(sinks.values[:, None, None] - peak)
        weights /= weights.sum(-1, keepdims=True) + sink
        return np.einsum("hts,shd->thd", weights, values).reshape(len(q), -1)

    def latent_attention(
        self,
        q: Floats,
        kv: Floats,
        w_uk: Any,
        w_uv: Any,
        *,
        layer: int,
        rope: RopeValues,
        norm: VectorValues,
        eps: float,
        scale: float,
    ) -> Floats:
        """The latent is expanded to keys and values, which the native Program never does."""
        heads, tokens = self.shape.q_heads, len(q)
        if heads == 0:
            return np.zeros((tokens, 0), np.float32)
        nope, latent = w_uk.k, len(norm.values)
        expanded = self.rms_norm(kv[:, :latent], norm, eps)
        keys = np.einsum("tl,hln->thn", expanded, w_uk.to_numpy().reshape(heads, latent, nope))
        values = np.einsum("tl,hvl->thv", expanded, w_uv.to_numpy().reshape(heads, -1, latent))
        shared = np.repeat(self._rotate(kv[:, None, latent:], rope), heads, axis=1)
        query = q.reshape(tokens, heads, -1)
        rotated = np.concatenate([query[..., :nope], self._rotate(query[..., nope:], rope)], axis=-1)
        self.keys_values[layer] = (np.concatenate([keys, shared], axis=-1), values)
        return self.attention(rotated, layer=layer, scale=scale)

    def linear_partial(self, x: Floats, weight: Any) -> Floats:
        return x @ weight.to_numpy().T

    def gated_mlp(self, x: Floats, gate_up: Any, down: Any, activation: str) -> Floats:
        panels = gate_up.to_numpy().reshape(-1, 2, 16, gate_up.k)
        gate, up = (x @ panels[:, half].reshape(-1, gate_up.k)[: down.k].T for half in (0, 1))
        if activation == "silu":
            gate = gate / (1 + np.exp(-gate))
        else:
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return (gate * up) @ down.to_numpy().T

    def experts(
        self,
        x: Floats,
        routing: Routing,
        router: Any,
        *,
        held: range,
        gate_up: ExpertMatrices,
        down: ExpertMatrices,
        activation: str,
        limit: float,
    ) -> Floats:
        """Every token goes to every expert, and most of what they make is dropped."""
        logits = x.astype(np.float64) @ router.weight.to_numpy().T
        logits += 0.0 if router.bias is None else router.bias.values
        bias = 0.0 if router.correction is None else router.correction.values
        shares = expert_shares(logits[:, : routing.num_experts], routing, bias)
        out = np.zeros(x.shape)
        for index, expert in enumerate(held):
            if activation == "silu":
                made = self.gated_mlp(x, gate_up.experts[index], down.experts[index], "silu")
            else:
                made = self._clamped_mlp(x, index, gate_up, down, limit)
            out += shares[:, expert, None] * made
        if gate_up.shared is not None:
            made = self.gated_mlp(x, gate_up.shared, down.shared, "silu")
            out += made / (1 + np.exp(-logits[:, routing.num_experts :])) if routing.shared_gate else made
        return out.astype(np.float32)

    def _clamped_mlp(
        self, x: Floats, index: int, gate_up: ExpertMatrices, down: ExpertMatrices, limit: float
    ) -> Floats:
        """gpt-oss's expert, with its biases."""
        first, second = gate_up.experts[index], down.experts[index]
        sums = x @ first.to_numpy().T + bias_of(gate_up.bias, index, first.n)
        panels = sums.reshape(len(x), -1, 2, 16)
        gate, up = (panels[:, :, half].reshape(len(x), -1)[:, : second.k] for half in (0, 1))
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        hidden = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
        return hidden @ second.to_numpy().T + bias_of(down.bias, index, second.n)

    def add_all_reduce(
        self,
        residual: Floats,
        partial: Floats,
        *,
        eps: float,
        post_norm: VectorValues | None = None,
        bias: VectorValues | None = None,
    ) -> None:
        total = self._sum(partial) + (0 if bias is None else bias.values)
        residual += total if post_norm is None else self.rms_norm(total, post_norm, eps)

    def lm_head(self, x: Floats, weight: Any) -> Floats:
        return np.concatenate(self.ranks.gather(self.rank, x @ weight.to_numpy().T), axis=-1)

    def sample(self, logits: Floats, *, softcap: float | None = None) -> None:
        self.logits = logits if softcap is None else np.tanh(logits / softcap) * softcap
        self.sampled = True


def bias_of(biases: Any, index: int, rows: int) -> Floats | float:
    """An expert's part of the biases of all, which are padded."""
    if biases is None:
        return 0.0
    begin = index * -(-rows // 32) * 32
    return biases.values[begin : begin + rows]


def expert_shares(logits: npt.NDArray[np.float64], routing: Routing, bias: Floats | float) -> npt.NDArray[np.float64]:
    """With which weight each expert counts, [tokens, experts]; 0 for those that are not chosen."""
    if routing.scoring == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    else:
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
    choice = scores + bias
    if routing.num_groups > 1:
        groups = np.sort(choice.reshape(len(choice), routing.num_groups, -1), axis=-1)
        best = groups[..., -1] if routing.group_score == "max" else groups[..., -2:].sum(-1)
        kept = np.zeros(best.shape, bool)
        np.put_along_axis(kept, np.argsort(-best, kind="stable")[:, : routing.top_groups], True, axis=-1)
        choice = np.where(np.repeat(kept, groups.shape[-1], axis=-1), choice, -np.inf)
    shares = np.zeros_like(scores)
    chosen = np.argsort(-choice, kind="stable")[:, : routing.top_k]
    np.put_along_axis(shares, chosen, np.take_along_axis(scores, chosen, -1), -1)
    if routing.renormalize:
        shares /= shares.sum(-1, keepdims=True)
    return shares * routing.scale


class LoadedPart(RankPart):
    """A rank's part that gives the weights themselves in place of what stands for them."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded.part.partition, loaded.part.rank)
        object.__setattr__(self, "loaded", loaded)

    def matrices(self, parameter: MatrixParameter) -> Any:
        return tuple(self.loaded.matrices(parameter))

    def vector(self, parameter: VectorParameter | None) -> Any:
        return None if parameter is None else self.loaded.vector(parameter)

    def rope(self, config: RopeConfig) -> Any:
        return self.loaded.native(Rope(config))


def run_group(group: list[Loaded], tokens: npt.NDArray[np.int64]) -> list[Floats]:
    """Each rank's logits, [tokens, vocabulary]."""
    ranks = Ranks(len(group))
    builders = [NumpyBuilder(loaded.part, tokens, ranks) for loaded in group]
    forward: Any = group[0].config.decoder.forward
    with ThreadPoolExecutor(len(group)) as pool:
        list(pool.map(lambda pair: forward(pair[0], LoadedPart(pair[1])), zip(builders, group, strict=True)))
    assert all(builder.sampled for builder in builders)
    return [builder.logits for builder in builders]
