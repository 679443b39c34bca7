"""Multi-head latent attention, in the vocabulary of the Program builder.

The projections of keys and values are absorbed: queries are brought into the space of the latent, attention runs over
the latents of the cache, and its results are brought into the space of the heads. Prefill takes the same way as decode,
although expanding keys and values would cost a long prompt fewer operations: the results of the two differ in their
last bits, and a token's must not depend on how its prompt was cut, cached or taken up again.
"""

from __future__ import annotations

from numaserve.kernels import PackedMatrix, Program, RopeTable, Vector
from numaserve.workers.program.buffers import Operand, Quantized, Tensor
from numaserve.workers.program.context_parallel import ContextParallel, context_parallel
from numaserve.workers.program.recorder import Recorder


class MlaOperations(Recorder):
    """Records multi-head latent attention, of a `RankShape` with a `value_dim`."""

    def latents(self, x: Operand, weight: PackedMatrix) -> Tensor:
        """What makes latents, fp32 [tokens, columns], whole on every rank; `weight` has this rank's rows of it.

        To have all rows on all ranks would save a meeting, and have each read and compute what one of them could: of
        DeepSeek-R1 on six ranks a tenth of what they read for a token.
        """
        bounds = list(self.shape.latent_bounds)
        part = Tensor(x.rows, weight.n, 4)
        if self.ring is None or not bounds:
            self._linear("linear", x, weight, part)
            return part
        self._claim_collective(part)
        self._linear("linear", x, weight, part)
        out = Tensor(x.rows, bounds[-1], 4)
        self._record(lambda p: p.gather_columns(part.place, out.place, bounds), part, out)
        return out

    def mla_attention(
        self,
        q: Tensor,
        kv: Tensor,
        w_uk: PackedMatrix,
        w_uv: PackedMatrix,
        *,
        layer: int,
        rope: RopeTable,
        norm: Vector,
        eps: float,
        scale: float,
    ) -> Operand:
        """Stores the latents of `kv` and attends to all of the sequence so far: bf16 [tokens, heads * value columns].

        `q`, fp32: of each head the part without positions, then the one that is rotated, in halves. `kv`, fp32: the
        latent, which `norm` is for, and the key that all heads share, which is rotated. `w_uk` has for each head the
        rows of the latent [latent, part without positions], `w_uv` [value columns, latent].
        """
        heads, latent = self.shape.q_heads, self.shape.value_dim
        nope = Operand(q.rows, heads * w_uk.k, 2)
        query = Tensor(q.rows, heads * self.shape.head_dim, 2)

        def store(p: Program) -> None:
            p.mla_store(q.place, kv.place, nope.place, query.place, layer, w_uk.k, rope, norm, eps)

        self._record(store, q, kv, nope, query)
        self._head_linear("mla_absorb", nope, w_uk, query)
        attended = Operand(q.rows, heads * latent, 2)
        self._attend(query, attended, layer, scale)
        out = Operand(q.rows, w_uv.n, 2)
        self._head_linear("mla_values", attended, w_uv, out)
        return out

    def context_parallel(self) -> ContextParallel | None:
        """How the latents of long sequences are divided among the ranks."""
        if self.ring is None or self.shape.value_dim == 0:
            return None
        shape, slot_bytes = self.shape, self.ring.slot_bytes
        from_tokens = self.settings.context_parallel_from
        return context_parallel(shape.head_bounds, shape.head_dim, shape.value_dim, slot_bytes, from_tokens)

    def native_context_parallel(self) -> tuple[list[int], int, int] | None:
        """What native code is told of it."""
        parallel = self.context_parallel()
        return (parallel.head_bounds, parallel.from_tokens, parallel.max_rows) if parallel else None

    def _attend(self, query: Tensor, attended: Operand, layer: int, scale: float) -> None:
        """Sequences that every rank attends for its own heads, and those that ranks divide."""
        partial = self._attention_partial(self.shape.value_dim)

        def attention(p: Program) -> None:
            p.attention(query.place, attended.place, partial.place, layer, scale, 0, 0.0)

        self._record(attention, query, attended, partial)
        parallel = self.context_parallel()
        if parallel is None:
            return
        head_dim, rows = self.shape.head_dim, parallel.max_rows
        gathered = Tensor(rows, parallel.heads * head_dim, 2)
        queries = Tensor(rows * self.shape.q_heads, head_dim, 2)
        results = Tensor(rows * parallel.heads, partial.cols, 4)
        self._claim_collective(queries)
        self._claim_collective(results)
        self._record(lambda p: p.gather_queries(query.place, queries.place, gathered.place), query, queries, gathered)

        def divided(p: Program) -> None:
            p.divided_attention(gathered.place, results.place, attended.place, partial.place, layer, scale)

        self._record(divided, gathered, results, attended, partial)

    def _head_linear(self, name: str, x: Operand, weight: PackedMatrix, out: Tensor) -> None:
        """Each head's columns of `x` through its rows of `weight` to the first of its columns of `out`."""
        heads = self.shape.q_heads
        x_stride, out_stride = (each.cols // max(heads, 1) for each in (x, out))
        in_int8, widened = self._taken(weight)
        source: Tensor = x
        if in_int8:
            source = self._quantized_heads(x, x_stride, weight)
            x_stride = source.head_ld
        self._record(
            lambda p: p.head_linear(name, source.place, x_stride, weight, heads, widened, out.place, out_stride),
            source,
            out,
        )

    def _quantized_heads(self, x: Operand, x_stride: int, weight: PackedMatrix) -> Quantized:
        """`x` in int8 as `weight` wants it. A head has scales of its own: what other heads hold does not show in it."""
        heads = self.shape.q_heads
        out = Quantized(x.rows, weight.k, 1, group=weight.group, heads=heads)
        self._record(lambda p: p.quantize_heads(x.place, x_stride, out.quantized_place, out.head_ld, heads), x, out)
        return out
