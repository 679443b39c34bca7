#include "kernels/runtime/attention_nodes.h"

namespace numaserve {

void attend(Run& run, const AttentionArgs& args, const AttentionWork& work, int thread) {
  const bool latent = args.value_dim > 0;
  const auto compute = latent ? run.table.latent_attention_item : run.table.attention_item;
  const auto merge = latent ? run.table.latent_attention_merge : run.table.attention_merge;
  const auto count = static_cast<int64_t>(work.items.size());
  // Handed out one by one, heaviest first: which thread computes an item does not show in its bits.
  // The thread's next item is a guess, good enough for prefetching: the others take one each before.
  for (int64_t i = run.next_item.fetch_add(1); i < count; i = run.next_item.fetch_add(1)) {
    const int64_t next = i + run.team.size();
    compute(args, work.items[static_cast<size_t>(i)], next < count ? &work.items[static_cast<size_t>(next)] : nullptr,
            run.scratch<void>(thread));
  }
  run.team.barrier(thread);
  if (thread == 0) run.next_item.store(0);
  const Range merges = split(static_cast<int64_t>(work.merges.size()), run.team.size(), thread);
  for (int64_t i = merges.begin; i < merges.end; ++i) {
    const AttentionWork::Merge& of = work.merges[static_cast<size_t>(i)];
    merge(args, of.first, of.blocks, of.stride);
  }
}

Cost attention_cost(const AttentionWork& work, const HeadGeometry& heads, KvDtype dtype) {
  const int64_t halves = heads.latent() ? 1 : 2;
  const int64_t position = halves * heads.kv_heads * kv_half_bytes(dtype, heads.head_tiles()) / kPageTokens;
  const int64_t pair = int64_t{2} * heads.q_heads * (heads.head_dim + heads.values());
  return {.bytes = position * work.positions, .flops = pair * work.pairs, .format = WeightFormat::kBf16};
}

void AttentionNode::run(Run& run, int thread) const {
  const AttentionWork& todo = run.step.attention[static_cast<size_t>(work)];
  attend(run,
         {.q = run.at<bf16>(q),
          .q_heads = heads.q_heads,
          .kv_heads = heads.kv_heads,
          .head_dim = heads.head_dim,
          .head_tiles = heads.head_tiles(),
          .scale = scale,
          .softcap = softcap,
          .window = todo.window,
          .kv = kv,
          .sequences = run.step.sequences.data(),
          .out = run.at<bf16>(out),
          .ldo = out.ld,
          .partial = run.at<float>(partial),
          .value_dim = heads.value_dim,
          .sinks = sinks,
          .block_groups = block_groups},
         todo, thread);
}

Cost AttentionNode::cost(const Step& step) const {
  return attention_cost(step.attention[static_cast<size_t>(work)], heads, kv.dtype);
}

}  // namespace numaserve
