#include "kernels/runtime/attention/attention_plan.h"

#include <algorithm>

namespace numaserve {
namespace {

// A token costs an item one for each of its rows, and this much for what is done once for all rows.
constexpr int64_t kItemRows = 16;
// The least cost of a token of keys and values that comes from memory, as those of a sequence's first rows do.
constexpr int64_t kReadRows = kItemRows + kAttentionRows;
// The same for a thread that attends little else, so that no other item hides the time of reading.
constexpr int64_t kAloneRows = 96;
// The number of items for each thread that even out threads, although the items of a prompt differ by a factor of two.
constexpr int64_t kItemsPerThread = 8;
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

// Returns the number of pairs of a token of an image and a later token that it sees.
int64_t later_pairs(Window window, const AttentionSequence& s) {
  if (!window.images || s.image_ends == nullptr) return 0;
  int64_t pairs = 0;
  for (int32_t at = s.start; at < s.start + s.q_len; ++at) pairs += window.end(s, at) - at - 1;
  return pairs;
}

// Returns the block after the last one that the token at `position` sees.
int32_t end_block(Window window, const AttentionSequence& s, int32_t position) {
  return static_cast<int32_t>(ceil_div(window.end(s, position), kAttentionBlock));
}

}  // namespace

Range AttentionWork::first_pages(const AttentionSequence& s, const AttentionItem& item, int32_t group) const {
  const int32_t last = s.start + (item.first_row + item.num_rows - 1) / group;
  const int64_t pages = ceil_div(window.end(s, last), kPageTokens);
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
  const int64_t rows = heads_.latent ? kLeastLatentRows : kAttentionRows;
  const int64_t of_head = capacity_.max_slots + ceil_div(capacity_.max_step_tokens * heads_.groups().largest(), rows);
  const int64_t whole = heads_.kv_heads * of_head;
  const auto items = static_cast<size_t>(cutter_.most_items(whole));
  work.items.reserve(items);
  work.sized.reserve(items);
  work.loads.reserve(static_cast<size_t>(threads_));
  work.merges.reserve(static_cast<size_t>(partial_rows(capacity_.pages_per_slot()) / 2));  // each merge has two rows
  return work;
}

// Returns the blocks of KV that rows of `item` see.
Range AttentionPlanner::visible_blocks(const AttentionSequence& s, const AttentionItem& item, Window window) const {
  const int32_t group = this->group(item);
  const int32_t last = s.start + (item.first_row + item.num_rows - 1) / group;
  return {first_block(window, s.start + item.first_row / group), end_block(window, s, last)};
}

// Returns the tokens that rows of `item` see.
int64_t AttentionPlanner::visible_tokens(const AttentionSequence& s, const AttentionItem& item, Window window) const {
  const int32_t group = this->group(item);
  const int32_t first = s.start + item.first_row / group;
  const int32_t last = s.start + (item.first_row + item.num_rows - 1) / group;
  return groups_.rank < 0 ? window.end(s, last) - window.first(first) : groups_.tokens(last + 1);
}

int64_t AttentionPlanner::token_cost(const AttentionItem& item) const {
  if (heads_.latent) return kItemRows + item.num_rows;  // the values of a latent are made once for all rows
  const int64_t computed = kItemRows * ceil_div(item.num_rows, kAttentionRows) + item.num_rows;
  return item.first_row == 0 ? std::max(computed, kReadRows) : computed;
}

// Adds the items of a sequence, each of at most `rows_per_item` query rows of a KV head. `reads`: with the time that a
// core takes to read them alone.
void AttentionPlanner::add_sequence(Sequences sequences, size_t index, int32_t rows_per_item, bool reads,
                                    AttentionWork& work) const {
  const AttentionSequence& s = sequences[index];
  AttentionItem item{.sequence = static_cast<int32_t>(index),
                     .kv_head = 0,
                     .first_row = 0,
                     .num_rows = 0,
                     .block = -1,
                     .blocks = 0,
                     .joined = false,
                     .partial = 0};
  for (; item.kv_head < heads_.kv_heads; ++item.kv_head) {
    const int32_t rows = s.q_len * group(item);
    for (item.first_row = 0; item.first_row < rows; item.first_row += rows_per_item) {
      item.num_rows = std::min(rows - item.first_row, rows_per_item);
      const Range visible = visible_blocks(s, item, work.window);
      const auto first = static_cast<int32_t>(visible.begin) + std::max(groups_.rank, 0);
      const auto end = static_cast<int32_t>(visible.end), step = groups_.rank < 0 ? 1 : groups_.world;
      const int32_t blocks = std::max(static_cast<int32_t>(ceil_div(end - first, step)), 1);
      const int64_t tokens = visible_tokens(s, item, work.window), cost = tokens * token_cost(item);
      const int64_t alone = reads && item.first_row == 0 ? std::max(cost, tokens * kAloneRows) : cost;
      work.sized.push_back({.item = item, .cost = cost, .alone = alone, .first = first, .blocks = blocks});
    }
  }
}

// Returns the mean cost of the items of a sequence and KV head, each of at most `rows` query rows.
int64_t AttentionPlanner::mean_item(const AttentionSequence& s, int32_t kv_head, int32_t rows, Window window) const {
  AttentionItem first{}, last{};
  first.kv_head = last.kv_head = kv_head;
  const int32_t all = s.q_len * group(first);
  if (all == 0) return 0;
  first.num_rows = last.num_rows = std::min(all, rows);
  last.first_row = all - last.num_rows;
  return (visible_tokens(s, first, window) + visible_tokens(s, last, window)) * token_cost(last) / 2;
}

// An item of many rows reads distant KV once for all its rows. A sequence has such items if there are enough of them.
void AttentionPlanner::plan_heads(Sequences sequences, AttentionWork& work) const {
  const HeadGroups groups = heads_.groups();
  const auto mean = [&](const AttentionSequence& s, int32_t kv_head, int32_t rows) {
    return mean_item(s, kv_head, rows, work.window);
  };
  int64_t total = 0;
  int32_t fullest = 0;  // the KV head with the most query heads
  for (int32_t head = 0; head < heads_.kv_heads; ++head) {
    if (groups.count(head) > groups.count(fullest)) fullest = head;
    for (const AttentionSequence& s : sequences)
      total += ceil_div(s.q_len * groups.count(head), kAttentionRows) * mean(s, head, kAttentionRows);
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    int32_t rows = kPromptRows;
    while (rows > kAttentionRows && mean(sequences[i], fullest, rows) * kItemsPerThread * threads_ > total) rows /= 2;
    add_sequence(sequences, i, rows, /*reads=*/true, work);
  }
  cutter_.decide(work.sized, work.loads);
}

// Takes the number of rows of an item that minimises the cost of the busiest thread. An item of many rows reads and
// transposes the values of a block once for all its rows, but there may be too few such items for all threads. Reading
// has no part in the choice: where it takes longer than computing, any number of rows will do.
void AttentionPlanner::plan_latents(Sequences sequences, AttentionWork& work) const {
  const auto busiest = [&](int32_t rows, bool reads) {
    work.sized.clear();
    for (size_t i = 0; i < sequences.size(); ++i) add_sequence(sequences, i, rows, reads, work);
    return cutter_.decide(work.sized, work.loads);
  };
  int32_t most = 0, rows = kLatentRows;
  for (const AttentionSequence& s : sequences) most = std::max(most, s.q_len * heads_.q_heads);
  while (rows > kLeastLatentRows && rows / 2 >= most) rows /= 2;  // with the same items
  int32_t best = rows, planned = rows;
  int64_t shortest = busiest(rows, false);
  const int64_t mean = cutter_.mean(work.sized), enough = mean + mean / 16;
  while (shortest > enough && planned > kLeastLatentRows) {
    planned /= 2;
    const int64_t cost = busiest(planned, false);
    if (cost < shortest) shortest = cost, best = planned;
  }
  busiest(best, kReadRows);
}

void AttentionPlanner::plan(Sequences sequences, AttentionWork& work) const {
  work.items.clear();
  work.merges.clear();
  work.sized.clear();
  work.can_store = !heads_.latent;
  if (heads_.kv_heads > 0 && !sequences.empty()) {
    for (int32_t head = 0; head < heads_.kv_heads; ++head) {
      const int32_t group = heads_.groups().count(head);
      for (const AttentionSequence& s : sequences) work.can_store &= group > 0 && s.q_len * group <= kAttentionRows;
    }
    if (heads_.latent)
      plan_latents(sequences, work);
    else
      plan_heads(sequences, work);
    cutter_.cut(work.sized, work.merges);
    for (const SizedItem& s : work.sized) work.items.push_back(s.item);
  }
  count(sequences, work);
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
    work.pairs += visible_pairs(work.window, start, end) + later_pairs(work.window, s);
  }
}

}  // namespace numaserve
