#include "kernels/runtime/attention/attention_nodes.h"

namespace numaserve {

void attend(Run& run, const AttentionArgs& args, const AttentionWork& work, size_t counter, int thread) {
  const auto compute = args.latent ? run.table.latent_attention_item : run.table.attention_item;
  const auto merge = args.latent ? run.table.latent_attention_merge : run.table.attention_merge;
  const auto count = static_cast<int64_t>(work.items.size());
  // The heaviest items come first. Results do not depend on which thread computes an item.
  hand_out(run, counter, count, thread, [&](int64_t item, int64_t next) {
    compute(args, work.items[static_cast<size_t>(item)],
            next < count ? &work.items[static_cast<size_t>(next)] : nullptr, run.scratch<void>(thread));
  });
  if (work.merges.empty()) return;
  run.team.barrier(thread);
  const Range merges = split(static_cast<int64_t>(work.merges.size()), run.team.size(), thread);
  for (int64_t i = merges.begin; i < merges.end; ++i) {
    const PartialMerge& of = work.merges[static_cast<size_t>(i)];
    merge(args, of.first, of.parts, of.stride);
  }
}

Cost attention_cost(const AttentionWork& work, const HeadGeometry& heads, KvDtype dtype) {
  const int64_t position = heads.kv_heads * heads.page_bytes(dtype) / kPageTokens;
  const int64_t pair = int64_t{2} * heads.q_heads * (heads.head_dim + heads.values());
  return {.bytes = position * work.positions, .flops = pair * work.pairs, .format = WeightFormat::kBf16};
}

AttentionArgs AttentionNode::arguments(const Run& run) const {
  const Batch& batch = run.step.batch(narrow);
  const AttentionWork& todo = batch.work(work);
  return {.q = run.at<bf16>(q),
          .heads = heads.groups(),
          .head_dim = heads.head_dim,
          .head_tiles = heads.head_tiles(),
          .value_dim = heads.values(),
          .value_tiles = heads.value_tiles(),
          .scale = scale,
          .softcap = softcap,
          .window = todo.window,
          .kv = kv,
          .sequences = batch.sequences(todo).data(),
          .out = run.at<bf16>(out),
          .ldo = out.ld,
          .tiled = read_alone && are_tiled(run, narrow),
          .partial = run.at<float>(partial),
          .latent = heads.latent,
          .value_scale = value_scale,
          .sinks = sinks,
          .block_groups = block_groups};
}

// The pages of a thread's first item: K and V of its head. Latents are not fetched: a block has more of them than the
// second-level cache should hold in addition to weights.
std::span<const std::byte> AttentionNode::reads_first(const Run& run, int thread, int64_t index) const {
  const Batch& batch = run.step.batch(narrow);
  const AttentionWork& todo = batch.work(work);
  if (heads.latent || static_cast<size_t>(thread) >= todo.items.size()) return {};
  const AttentionItem& item = todo.items[static_cast<size_t>(thread)];
  const AttentionSequence& s = batch.sequences(todo)[static_cast<size_t>(item.sequence)];
  const Range pages = todo.first_pages(s, item, heads.groups().count(item.kv_head));
  if (index >= pages.end - pages.begin) return {};
  return {kv.k + s.pages[pages.begin + index] * kv.page_stride + item.kv_head * kv.head_stride,
          static_cast<size_t>(kv.head_stride)};
}

void AttentionNode::run(Run& run, int thread) const {
  AttentionArgs args = arguments(run);
  RopeStoreArgs stores{};
  if (rope != nullptr && rope->joins_next(run)) {
    stores = rope->arguments(run);
    args.rope = &stores;
  }
  if (next_node != nullptr) {
    const std::span<const std::byte> after = next_node->reads_first(run, thread, 0);
    args.after = after.data();
    args.after_lines = static_cast<int64_t>(after.size()) / kLineBytes;
  }
  attend(run, args, run.step.batch(narrow).work(work), counter, thread);
}

Cost AttentionNode::cost(const Step& step) const {
  return attention_cost(step.batch(narrow).work(work), heads, kv.dtype);
}

}  // namespace numaserve
