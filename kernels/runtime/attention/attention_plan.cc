#include "kernels/runtime/attention/attention_plan.h"

#include <algorithm>

namespace numaserve {
namespace {

// With more items per thread than this, the load is balanced without cutting a sequence's KV into blocks.
constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kItemRows = 16;  // rows whose computation costs as much as the fixed work of an item for each block
constexpr int32_t kLeastLatentRows = 4;

int32_t first_block(Window window, int32_t position) { return window.first(position) / kAttentionBlock; }

// Returns the number of pairs of a token in [start, end) and a position that it sees.
int64_t visible_pairs(Window window, int64_t start, int64_t end) {
  // The pairs of tokens that see all positions from `from` on.
  const auto triangle = [](int64_t from, int64_t begin, int64_t stop) {
    const int64_t count = stop - begin, seen = begin - from;
    return count * seen + count * (count + 1) / 2;
  };
  if (window.bidirectional) {
    int64_t pairs = 0;
    for (auto at = static_cast<int32_t>(start); at < end; ++at)
      pairs += window.end(at, static_cast<int32_t>(end)) - window.first(at);
    return pairs;
  }
  if (window.tokens == 0) return triangle(0, start, end);
  if (!window.aligned) {
    const int64_t growing = std::clamp<int64_t>(window.tokens - start, 0, end - start);
    return triangle(0, start, start + growing) + (end - start - growing) * window.tokens;
  }
  int64_t pairs = 0;
  for (int64_t begin = start; begin < end;) {
    const int64_t from = begin / window.tokens * window.tokens, stop = std::min<int64_t>(end, from + window.tokens);
    pairs += triangle(from, begin, stop);
    begin = stop;
  }
  return pairs;
}

// Returns the block after the last one that the token at `position` sees.
int32_t end_block(Window window, const AttentionSequence& s, int32_t position) {
  return static_cast<int32_t>(ceil_div(window.end(position, s.start + s.q_len), kAttentionBlock));
}

int32_t all_blocks(const AttentionSequence& s) {
  return static_cast<int32_t>(ceil_div(s.start + s.q_len, kAttentionBlock));
}

}  // namespace

Range AttentionWork::first_pages(const AttentionSequence& s, const AttentionItem& item, int32_t group) const {
  const int32_t last = s.start + (item.first_row + item.num_rows - 1) / group;
  const int64_t pages = ceil_div(window.end(last, s.start + s.q_len), kPageTokens);
  const int32_t block = item.block >= 0 ? item.block : first_block(window, s.start + item.first_row / group);
  const int64_t begin = block * kBlockPages;
  return {begin, std::min<int64_t>(begin + kBlockPages, pages)};
}

int64_t AttentionPlanner::partial_rows(int64_t pages_per_slot) {
  return kPartialSequences * kAttentionRows * ceil_div(pages_per_slot * kPageTokens, kAttentionBlock);
}

AttentionWork AttentionPlanner::make_work(Window window) const {
  AttentionWork work;
  work.window = window;
  // Each sequence either has one item for each KV head and block of rows, or is cut within `partial_rows`.
  const int64_t group = heads_.kv_heads > 0 ? heads_.q_heads / heads_.kv_heads : 1;
  const int64_t rows = heads_.latent ? kLeastLatentRows : kAttentionRows;
  const int64_t items = heads_.kv_heads * (limits_.max_slots + ceil_div(limits_.max_tokens * group, rows));
  const int64_t cut_rows = partial_rows(limits_.pages_per_slot);
  work.items.reserve(static_cast<size_t>(items + cut_rows));
  work.merges.reserve(static_cast<size_t>(heads_.latent ? cut_rows : items));
  return work;
}

// An item of many rows reads distant KV once for all its rows. Such items are used if there are enough for all threads.
AttentionPlanner::Cut AttentionPlanner::cut_heads(Sequences sequences, Window window) const {
  const auto rows_of = [&](const AttentionSequence& s) { return int64_t{s.q_len} * heads_.q_heads / heads_.kv_heads; };
  const auto items_of = [&](int32_t rows) {
    int64_t items = 0;
    for (const AttentionSequence& s : sequences) items += heads_.kv_heads * ceil_div(rows_of(s), rows);
    return items;
  };
  const int64_t enough = kItemsPerThread * threads_;
  if (items_of(kAttentionRows) < enough) {
    int64_t cut_rows = 0;
    for (const AttentionSequence& s : sequences) {
      const int64_t blocks = all_blocks(s) - first_block(window, s.start);
      cut_rows += blocks > 1 ? heads_.kv_heads * rows_of(s) * blocks : 0;
    }
    return {kAttentionRows, cut_rows <= partial_rows(limits_.pages_per_slot)};
  }
  int32_t rows = kPromptRows;
  while (rows > kAttentionRows && items_of(rows) < 2 * enough) rows /= 2;
  return {rows, false};
}

// Returns the cut that minimises the time of the busiest thread. An item of many rows reads and transposes the values
// of a block once for all its rows, but there may be too few such items for all threads. One token has one row per
// head, and a short context has one or two blocks, the last of which may be nearly empty.
AttentionPlanner::Cut AttentionPlanner::cut_latent(Sequences sequences) const {
  Cut best{kLatentRows, false};
  int64_t shortest = INT64_MAX;
  for (int32_t rows = kLatentRows; rows >= kLeastLatentRows; rows /= 2)
    for (const bool cut : {false, true}) {
      int64_t items = 0, most = 0, total = 0, cut_rows = 0;
      for (const AttentionSequence& s : sequences) {
        const int64_t all = int64_t{s.q_len} * heads_.q_heads, blocks = groups_.count(all_blocks(s));
        const int64_t count = ceil_div(all, rows), height = std::min<int64_t>(all, rows), cost = kItemRows + height;
        const int64_t tokens = groups_.rank < 0 ? s.start + s.q_len : blocks * kAttentionBlock;
        const int64_t merge = cut && blocks > 1 ? kAttentionBlock * height / 8 : 0;  // of a block
        items += count * (cut ? blocks : 1);
        most = std::max(most, (cut ? std::min<int64_t>(tokens, kAttentionBlock) : tokens) * cost + merge);
        total += count * (tokens * cost + blocks * merge);
        cut_rows += cut && blocks > 1 ? all * blocks : 0;
      }
      if (items == 0 || cut_rows > partial_rows(limits_.pages_per_slot)) continue;
      const int64_t busiest = std::max(most, ceil_div(items, threads_) * total / items);
      if (busiest >= shortest) continue;
      shortest = busiest;
      best = {rows, cut};
    }
  return best;
}

// Adds the items of some rows of one KV head, which see `blocks`, and the merges of their partial results.
void AttentionPlanner::add_rows(AttentionItem item, Range blocks, bool cut, int64_t& partial,
                                AttentionWork& work) const {
  const int32_t step = groups_.rank < 0 ? 1 : groups_.world;
  const auto begin = static_cast<int32_t>(blocks.begin) + std::max(groups_.rank, 0);
  const auto count = static_cast<int32_t>(ceil_div(std::max<int64_t>(blocks.end - begin, 0), step));
  item.partial = partial;
  if (!cut || count <= 1) {
    work.items.push_back(item);
    return;
  }
  item.block = begin;
  const int32_t merged = heads_.latent ? 1 : item.num_rows;  // latent rows are long: one merge for each
  for (int32_t r = 0; r < item.num_rows; r += merged) {
    AttentionItem rows_of = item;
    rows_of.first_row += r;
    rows_of.num_rows = merged;
    rows_of.partial += r;
    work.merges.push_back({.first = rows_of, .blocks = count, .stride = item.num_rows});
  }
  for (int32_t i = 0; i < count; ++i, item.block += step, item.partial += item.num_rows) work.items.push_back(item);
  partial = item.partial;
}

void AttentionPlanner::plan(Sequences sequences, AttentionWork& work) const {
  work.items.clear();
  work.merges.clear();
  work.can_store = !heads_.latent;
  if (heads_.kv_heads > 0 && !sequences.empty()) {
    const int32_t group = heads_.q_heads / heads_.kv_heads;
    const Cut cut = heads_.latent ? cut_latent(sequences) : cut_heads(sequences, work.window);
    int64_t partial = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const AttentionSequence& s = sequences[i];
      const int32_t rows = s.q_len * group;
      work.can_store &= rows <= kAttentionRows;
      for (int32_t row = 0; row < rows; row += cut.rows) {
        const int32_t num_rows = std::min(rows - row, cut.rows);
        const Range blocks{first_block(work.window, s.start + row / group),
                           end_block(work.window, s, s.start + (row + num_rows - 1) / group)};
        for (int32_t head = 0; head < heads_.kv_heads; ++head)
          add_rows({.sequence = static_cast<int32_t>(i),
                    .kv_head = head,
                    .first_row = row,
                    .num_rows = num_rows,
                    .block = -1,
                    .partial = 0},
                   blocks, cut.blocks, partial, work);
      }
    }
    sort_items(sequences, work);
  }
  count(sequences, work);
}

void AttentionPlanner::sort_items(Sequences sequences, AttentionWork& work) const {
  const int32_t group = heads_.q_heads / heads_.kv_heads;
  const auto cost = [&](const AttentionItem& item) {
    const AttentionSequence& s = sequences[static_cast<size_t>(item.sequence)];
    const int64_t length = item.block >= 0 ? kAttentionBlock : s.start + (item.first_row + item.num_rows - 1) / group;
    return length * (kItemRows + item.num_rows);
  };
  std::sort(work.items.begin(), work.items.end(),
            [&](const AttentionItem& a, const AttentionItem& b) { return cost(a) > cost(b); });
}

void AttentionPlanner::count(Sequences sequences, AttentionWork& work) const {
  for (const AttentionSequence& s : sequences) {
    const int64_t start = s.start, rows = s.q_len, end = start + rows;
    if (groups_.rank >= 0) {
      work.positions += groups_.tokens(end);
      for (int64_t token = start; token < end; ++token) work.pairs += groups_.tokens(token + 1);
      continue;
    }
    work.positions += end - work.window.first(s.start);
    work.pairs += visible_pairs(work.window, start, end);
  }
}

}  // namespace numaserve
