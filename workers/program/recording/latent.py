"""Multi-head latent attention, in the vocabulary of the Program builder.

The projections of keys and values are absorbed: queries are brought into the space of the latent, attention runs over
the latents of the cache, and its results are brought into the space of the heads. Prefill takes the same way as decode,
although expanding keys and values would cost a long prompt fewer operations: the results of the two differ in their
last bits, and a token's must not depend on how its prompt was cut, cached or taken up again.
"""

from numaserve.workers.program.buffers import Operand, Quantized, Tensor
from numaserve.workers.program.caches import CacheIndex
from numaserve.workers.program.ops.attention import Attention
from numaserve.workers.program.ops.base import Matrix, Rope, Vector
from numaserve.workers.program.ops.latent import DividedAttention, GatherQueries, LatentStore
from numaserve.workers.program.ops.products import HeadLinear
from numaserve.workers.program.ops.rows import QuantizeHeads
from numaserve.workers.program.recording.recorder import Recorder


class LatentRecorder(Recorder):
    """Records multi-head latent attention."""

    def latents(self, x: Operand, weight: Matrix, bounds: tuple[int, ...] = ()) -> Tensor:
        """The product that makes latents: fp32 [tokens, columns], whole on every rank.

        `weight` has this rank's rows of it, and `bounds` are world size + 1 boundaries of the ranks' rows; none where
        each rank has them all.

        To have all rows on all ranks would save a meeting, and have each read and compute what one of them could: of
        DeepSeek-R1 on six ranks a tenth of what they read for a token.
        """
        return self._whole_product("linear", x, weight, bounds)

    def latent_attention(
        self,
        q: Tensor,
        kv: Tensor,
        w_uk: Matrix,
        w_uv: Matrix,
        *,
        cache: CacheIndex,
        rope: Rope,
        norm: Vector,
        eps: float,
        scale: float,
    ) -> Operand:
        """Stores the latents of `kv` and attends to all of the sequence so far: bf16 [tokens, heads * value columns].

        `q` is fp32: each head's part without positions, then its rotated part, in halves. `kv` is fp32: the latent,
        which `norm` is for, then the rotated key that all heads share. For each head `w_uk` is [latent, part without
        positions], `w_uv` [value columns, latent].
        """
        own = self.shape.caches[cache.kind].heads
        heads, latent = own.query, own.value_dim
        nope = Operand(q.rows, heads * w_uk.k, 2)
        query = Tensor(q.rows, heads * own.dim, 2)
        self.operations.append(
            LatentStore(q=q, kv=kv, nope=nope, query=query, cache=cache, nope_dim=w_uk.k, rope=rope, norm=norm, eps=eps)
        )
        self._head_linear("latent_absorb", nope, w_uk, query, heads)
        attended = Operand(q.rows, heads * latent, 2)
        self._attend(query, attended, cache, scale)
        out = Operand(q.rows, w_uv.n, 2)
        self._head_linear("latent_values", attended, w_uv, out, heads)
        return out

    def _attend(self, query: Tensor, attended: Operand, cache: CacheIndex, scale: float) -> None:
        """Append attention to sequences that each rank sees whole, and to those that ranks divide."""
        heads = self.shape.caches[cache.kind].heads
        partial = self._attention_partial(heads.value_dim)
        self.operations.append(Attention(q=query, out=attended, partial=partial, cache=cache, scale=scale))
        parallel = self.setup.context_parallel
        if parallel is None:
            return
        rows = parallel.max_rows
        gathered = Tensor(rows, parallel.heads * heads.dim, 2)
        queries = Tensor(rows * heads.query, heads.dim, 2, collective=True)
        results = Tensor(rows * parallel.heads, partial.cols, 4, collective=True)
        self.operations += [
            GatherQueries(query=query, message=queries, gathered=gathered),
            DividedAttention(q=gathered, message=results, out=attended, partial=partial, cache=cache, scale=scale),
        ]

    def _head_linear(self, name: str, x: Operand, weight: Matrix, out: Tensor, heads: int) -> None:
        """Multiply each head's columns of `x` by its rows of `weight`, into the first of its columns of `out`."""
        in_int8, widened = self._taken(weight)
        source: Operand | Quantized = x
        if in_int8:
            # A head has scales of its own: what other heads hold does not show in it.
            source = Quantized(x.rows, weight.k, 1, group=weight.group, heads=heads)
            self.operations.append(QuantizeHeads(x=x, out=source))
        product = HeadLinear(name=name, x=source, weight=weight, num_heads=heads, widened=widened, out=out)
        self.operations.append(product)
