#include "kernels/runtime/program/batch.h"

#include <algorithm>

namespace numaserve {

Batch::Batch(const Capacity& capacity, std::span<const CacheKind> kinds, int32_t groups, int threads) : tables(1) {
  for (const CacheKind& kind : kinds) {
    planners_.emplace_back(capacity, kind.heads, BlockGroups{groups, -1}, threads);
    attention.push_back(planners_.back().make_work(kind.window));
    attention.back().table = kind.table;
    tables.resize(std::max(tables.size(), kind.table + 1));
  }
  for (Paged& table : tables) {
    table.sequences.reserve(static_cast<size_t>(capacity.max_slots));
    table.runs.reserve(static_cast<size_t>(capacity.max_step_tokens + capacity.max_slots));
  }
}

void Batch::clear() {
  for (Paged& table : tables) {
    table.sequences.clear();
    table.runs.clear();
  }
}

void Batch::add(const Slot& slot, int32_t row, int32_t start, int32_t count, const int32_t* image_ends) {
  for (size_t i = 0; i < tables.size(); ++i) {
    auto& [sequences, runs] = tables[i];
    sequences.push_back(
        {.row = row, .q_len = count, .start = start, .pages = slot.tables[i].pages.data(), .image_ends = image_ends});
    for (int32_t position = start; position < start + count; position += runs.back().count)
      runs.push_back(page_run(sequences.back(), position, start + count));
  }
}

void Batch::plan() {
  for (size_t kind = 0; kind < attention.size(); ++kind)
    planners_[kind].plan(sequences(attention[kind]), attention[kind]);
}

}  // namespace numaserve
