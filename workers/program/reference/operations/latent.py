"""Multi-head latent attention."""

import torch
from numaserve.workers.program.buffers import ATTENTION_BLOCK
from numaserve.workers.program.ops.latent import DividedAttention, GatherColumns, GatherQueries, LatentStore
from numaserve.workers.program.reference.operations.attention import Softmax, attended, rotated, scaled, seen
from numaserve.workers.program.reference.operations.rows import normed
from numaserve.workers.program.reference.run import Run


def latent_store(run: Run, op: LatentStore) -> None:
    """The parts without positions, the rotated ones in their places, latents and the shared key in the cache."""
    own, numbers = run.heads(op.cache), run.numbers
    latent, heads = own.value_dim, own.query
    kv = run.get(op.kv)[:, None, : own.dim]  # one head
    latents = normed(kv[..., :latent], run.weights.values(op.norm), op.eps)
    run.kv.store(op.cache, run.step, torch.cat([latents, rotated(run, kv[..., latent:], op.rope)], dim=-1))
    width = op.nope_dim + own.dim - latent
    q = run.get(op.q)[:, : heads * width].reshape(len(kv), heads, width)
    run.put(op.nope, numbers.bf16(scaled(run, q[..., : op.nope_dim], op.rope)).flatten(1))
    rotated_q = numbers.bf16(scaled(run, rotated(run, q[..., op.nope_dim :], op.rope), op.rope))
    run.put(op.query, torch.cat([q.new_zeros(len(q), heads, latent), rotated_q], dim=-1).flatten(1))


def gather_columns(run: Run, op: GatherColumns) -> None:
    """The ranks' parts side by side."""
    run.put(op.out, torch.cat(run.ranks.gather(run.get(op.message)), dim=1))


def gather_queries(run: Run, op: GatherQueries) -> None:
    """The queries of every rank's heads, for the sequences that are divided."""
    own = run.get(op.query)[run.step.divided_rows]
    run.put(op.gathered, torch.cat(run.ranks.gather(own), dim=1))


def divided_attention(run: Run, op: DividedAttention) -> None:
    """Attention of all heads over this rank's blocks; then all ranks' results of its own heads, weighted by sums."""
    heads, parallel, divided = run.heads(op.cache), run.setup.context_parallel, run.step.divided
    if parallel is None or not divided:
        return
    world, rank = run.setup.ranks.world, run.setup.ranks.rank
    queries = run.get(op.q).unflatten(1, (parallel.heads, heads.dim))
    found, of_each = [], queries.split([each.count for each in divided])
    for each, own_queries in zip(divided, of_each, strict=True):
        keys = run.kv.load(op.cache, each)
        own_blocks = torch.arange(each.end) // ATTENTION_BLOCK % world == rank
        sees = seen(each) & own_blocks
        found.append(attended(own_queries, keys, keys[..., : heads.value_dim], sees, Softmax(op.scale)))
    parts = run.ranks.gather([torch.cat(each) for each in zip(*found, strict=True)])
    mine = slice(parallel.head_bounds[rank], parallel.head_bounds[rank + 1])
    values, totals = (torch.stack([part[which][:, mine] for part in parts]) for which in (0, 1))
    merged = (values * torch.softmax(totals, dim=0)[..., None]).sum(0)
    out = run.get(op.out).clone()
    out[run.step.divided_rows] = run.numbers.bf16(merged).flatten(1)
    run.put(op.out, out)
