// The plan of a step's attention; see module.cc.
#include "kernels/runtime/attention/attention_plan.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "tests/kernels/native/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve {
namespace {

// Sequence, KV head, first row, number of rows, first block, number of blocks, whether they are joined, first partial.
using Item = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, bool, int64_t>;
// Sequence, KV head, first row, number of rows, first partial, number of partial results, their distance.
using Merge = std::tuple<int32_t, int32_t, int32_t, int32_t, int64_t, int32_t, int64_t>;

std::pair<std::vector<Item>, std::vector<Merge>> attention_plan(const std::vector<std::pair<int32_t, int32_t>>& starts,
                                                                std::pair<int32_t, int32_t> heads,
                                                                std::pair<int32_t, int32_t> others, bool latent,
                                                                int32_t window, std::pair<int32_t, int32_t> groups,
                                                                int64_t pages_per_slot, int threads) {
  Capacity capacity{.num_pages = pages_per_slot,
                    .context_length = pages_per_slot * kPageTokens,
                    .max_slots = static_cast<int64_t>(starts.size()),
                    .max_logit_rows = 1};
  std::vector<AttentionSequence> sequences;
  for (const auto& [start, count] : starts) {
    require(count >= 1 && start >= 0 && start + count <= capacity.context_length, "a sequence is out of range");
    sequences.push_back(
        {.row = static_cast<int32_t>(capacity.max_step_tokens), .q_len = count, .start = start, .pages = nullptr});
    capacity.max_step_tokens += count;
  }
  const HeadGeometry geometry{.q_heads = heads.first,
                              .kv_heads = heads.second,
                              .head_dim = 64,
                              .latent = latent,
                              .lower = others.first,
                              .higher = others.second};
  const AttentionPlanner planner(capacity, geometry, {groups.first, groups.second}, threads);
  AttentionWork work = planner.make_work({.tokens = window});
  const auto memory = std::tuple(work.items.capacity(), work.merges.capacity(), work.sized.capacity());
  planner.plan(sequences, work);
  require(memory == std::tuple(work.items.capacity(), work.merges.capacity(), work.sized.capacity()),
          "a plan needs more memory than was reserved");
  std::vector<Item> items;
  for (const AttentionItem& i : work.items)
    items.emplace_back(i.sequence, i.kv_head, i.first_row, i.num_rows, i.block, i.blocks, i.joined, i.partial);
  std::vector<Merge> merges;
  for (const PartialMerge& m : work.merges)
    merges.emplace_back(m.first.sequence, m.first.kv_head, m.first.first_row, m.first.num_rows, m.first.partial,
                        m.parts, m.stride);
  return {items, merges};
}

}  // namespace

void bind_attention_plan(nb::module_& ops) {
  ops.def("attention_plan", &attention_plan, "starts"_a, "heads"_a, "others"_a, "latent"_a, "window"_a, "groups"_a,
          "pages_per_slot"_a, "threads"_a);
}

}  // namespace numaserve
