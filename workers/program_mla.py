"""Multi-head latent attention, in the vocabulary of the Program builder.

The projections of keys and values are absorbed: queries are brought into the space of the latent, attention runs over
the latents of the cache, and its results are brought into the space of the heads. Prefill takes the same way as decode,
although expanding keys and values would cost a long prompt fewer operations: the results of the two differ in their
last bits, and a token's must not depend on how its prompt was cut, cached or taken up again.
"""

from __future__ import annotations

from numaserve.kernels import PackedMatrix, Program, RopeTable, Vector
from numaserve.workers.buffers import Operand, Tensor
from numaserve.workers.recorder import Recorder


class MlaOperations(Recorder):
    """Records multi-head latent attention, of a `RankShape` with a `value_dim`."""

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
        partial = Tensor(Program.partial_rows(self.limits.pages_per_slot), latent + 16, 4)
        self._record(
            lambda p: p.attention(query.place, attended.place, partial.place, layer, scale, 0, 0.0),
            query,
            attended,
            partial,
        )
        out = Operand(q.rows, w_uv.n, 2)
        self._head_linear("mla_values", attended, w_uv, out)
        return out

    def _head_linear(self, name: str, x: Tensor, weight: PackedMatrix, out: Tensor) -> None:
        """Each head's columns of `x` through its rows of `weight` to the first of its columns of `out`."""
        heads = self.shape.q_heads
        x_stride, out_stride = (each.cols // max(heads, 1) for each in (x, out))
        self._record(lambda p: p.head_linear(name, x.place, x_stride, weight, heads, out.place, out_stride), x, out)
