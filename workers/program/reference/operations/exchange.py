"""Operations in which the ranks meet."""

from collections.abc import Sequence
from typing import cast

import torch
from numaserve.workers.interface.protocol import TokenLogprobs
from numaserve.workers.program.ops.exchange import DividedNorm, Reduce, Sample
from numaserve.workers.program.reference.masks import Mask
from numaserve.workers.program.reference.operations.rows import normed
from numaserve.workers.program.reference.run import Run, Sampled
from numaserve.workers.program.reference.sampling import (
    F32,
    adjusted,
    is_dropped,
    named_logprobs,
    sampled_token,
    token_logprobs,
    usable,
)
from numaserve.workers.program.reference.slots import Slot
from numaserve.workers.program.reference.step import LogitRow


def reduce(run: Run, op: Reduce) -> None:
    """The sum in rank order, with bias and norm, added to the residual stream."""
    parts = run.ranks.gather(run.get(op.partial))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    bias = run.optional(op.bias)
    if bias is not None:
        total = total + bias
    if op.post_norm is not None:
        total = normed(total, run.weights.values(op.post_norm), op.eps)
    run.put(op.residual, total, add=not op.assign)
    scale = run.optional(op.scale)
    if scale is not None:
        run.put(op.residual, run.get(op.residual) * scale)


def divided_norm(run: Run, op: DividedNorm) -> None:
    """Sums of squares of all ranks, in rank order, then the scaling of the rank's columns."""
    x = run.get(op.x)
    widths = [weight.size for weight in op.weights]
    *vectors, rest = x.split([*widths, x.shape[1] - sum(widths)], dim=1)
    counted = (vector[:, vector.shape[1] - count :] for vector, count in zip(vectors, op.counted, strict=True))
    sums = [each.square().sum(-1) for each in counted]
    total, *others = run.ranks.gather(torch.stack(sums, dim=1))
    for part in others:
        total = total + part
    scales = torch.rsqrt(total / torch.tensor(op.columns) + op.eps)
    scaled = [
        vector * scales[:, index, None] * run.weights.values(weight)
        for index, (vector, weight) in enumerate(zip(vectors, op.weights, strict=True))
    ]
    run.put(op.x, torch.cat([*scaled, rest], dim=1))


def sample(run: Run, op: Sample) -> None:
    """The first rank samples, and sends the tokens to the others."""
    logits = torch.cat(run.ranks.gather(run.get(op.logits)), dim=1)
    if op.softcap > 0:
        logits = torch.tanh(logits / op.softcap) * op.softcap
    run.values[op.logits] = logits
    rows = run.step.logit_rows
    tokens = []
    if run.setup.ranks.rank == 0:
        wide = cast(F32, logits.to(torch.float32).numpy())
        run.sampled = [Sampled()] * len(rows)
        # Free rows first: they wait for nobody's mask.
        for index in sorted(range(len(rows)), key=lambda index: _is_masked(rows[index])):
            run.sampled[index] = _sampled(run, rows[index], wide[index])
        tokens = [-1 if each.sample is None else each.sample.token for each in run.sampled]
    tokens = list(run.ranks.gather(tokens)[0])
    for index in _wrong(rows, tokens):
        if run.sampled:
            run.sampled[index] = Sampled()
        tokens[index] = -1
    for index, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        if token >= 0:
            _remember(row.sequence.slot, token)
        told = run.sampled and run.sampled[index] != Sampled()
        if told and not usable(wide[index]) and row.sequence.index not in run.spoiled:
            run.spoiled.append(row.sequence.index)


def _wrong(rows: Sequence[LogitRow], tokens: Sequence[int]) -> list[int]:
    """Return the rows that rest on a rejected draft token."""
    found, holds = [], True
    for index, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        holds = not row.drafts or holds
        if not holds:
            found.append(index)
        holds = holds and token == row.draft
    return found


def _is_masked(row: LogitRow) -> bool:
    return row.sample and row.sequence.slot.sampling.masked


def _sampled(run: Run, row: LogitRow, logits: F32) -> Sampled:
    slot = row.sequence.slot
    params, target, chosen = slot.sampling, None, None
    named: list[float] = []
    if row.target >= 0:
        target = token_logprobs(logits, row.target, max(params.logprobs, 0))
    # A draft token may lead to NaN: the sequence fails when it gets there without draft tokens.
    if row.sample and (usable(logits) or not row.drafts):
        mask = Mask()
        if params.masked:
            mask = run.masks.wait_for(row.sequence.number, len(row.drafts), len(logits))
        x = adjusted(logits, params, row.position, slot.prompt, [*slot.output, *row.drafts], allowed=mask.allowed)
        token = sampled_token(x, params, row.position)
        dropped = mask.dropped or is_dropped(x, mask.allowed)
        if row.drafts and (dropped or mask.late or row.sequence.index in run.late):
            return Sampled(target=target)  # the sequence goes on with what was sampled before
        if dropped:
            run.dropped.append(row.sequence.index)
        if mask.late:
            run.late.append(row.sequence.index)
        named = named_logprobs(logits, params.token_ids_logprob) if params.token_ids_logprob else []
        wanted = params.logprobs >= 0
        chosen = token_logprobs(logits, token, params.logprobs) if wanted else TokenLogprobs(token, 0.0)
    return Sampled(chosen, target, named)


def _remember(slot: Slot, token: int) -> None:
    slot.last_token = token
    if slot.sampling.has_penalties:
        slot.output.append(token)
