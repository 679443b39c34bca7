#include "kernels/runtime/attention/context_parallel.h"

#include "kernels/runtime/attention/attention_nodes.h"

namespace numaserve {

void GatherQueriesNode::run(Run& run, int thread) const {
  const std::vector<int32_t>& rows = run.step.divided.rows;
  const auto num_rows = static_cast<int64_t>(rows.size());
  // Rows of queries are short, so a thread's share is whole rows.
  const Range mine = split(num_rows, run.team.size(), thread);
  const int64_t row_bytes = heads.row_bytes(run.ring->rank());
  for (int64_t row = mine.begin; row < mine.end; ++row)
    run.table.copy(run.at<bf16>(query) + rows[static_cast<size_t>(row)] * query.ld,
                   run.at<std::byte>(message) + row * row_bytes, row_bytes);
  run.team.barrier(thread);
  if (meet(run, message, thread)) copy_columns(run, heads, message, num_rows, gathered, thread);
  leave(run, message, thread);
}

void DividedAttentionNode::run(Run& run, int thread) const {
  const Step::Divided& divided = run.step.divided;
  attend(run,
         {.q = run.at<bf16>(q),
          .heads = all_heads.groups(),
          .head_dim = all_heads.head_dim,
          .head_tiles = all_heads.head_tiles(),
          .value_dim = all_heads.values(),
          .value_tiles = all_heads.value_tiles(),
          .scale = scale,
          .softcap = 0.0f,
          .window = {},
          .kv = kv,
          .sequences = divided.sequences.data(),
          .out = nullptr,
          .ldo = 0,
          .partial = run.at<float>(partial),
          .latent = true,
          .block_groups = run.world(),
          .block_group = run.ring->rank(),
          .group_out = run.at<float>(message)},
         divided.work, counter, thread);
  run.team.barrier(thread);
  if (meet(run, message, thread)) merge_groups(run, thread);
  leave(run, message, thread);
}

void DividedAttentionNode::merge_groups(const Run& run, int thread) const {
  const Parts parts = run.parts(message);
  const auto own = static_cast<size_t>(run.ring->rank());
  run.table.latent_groups_merge({.parts = parts.data(),
                                 .num_parts = run.world(),
                                 .all_heads = all_heads.q_heads,
                                 .first_head = head_bounds[own],
                                 .heads = head_bounds[own + 1] - head_bounds[own],
                                 .value_dim = all_heads.value_dim,
                                 .rows = run.step.divided.rows.data(),
                                 .num_rows = static_cast<int64_t>(run.step.divided.rows.size()),
                                 .out = run.at<bf16>(out),
                                 .ldo = out.ld},
                                thread, run.lanes());
}

Cost DividedAttentionNode::cost(const Step& step) const {
  return attention_cost(step.divided.work, all_heads, kv.dtype);
}

}  // namespace numaserve
