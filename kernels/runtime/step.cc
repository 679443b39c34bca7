#include "kernels/runtime/step.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace numaserve {
namespace {

// Items beyond this many per thread balance well enough without cutting a sequence's KV into blocks of their own.
constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kItemRows = 16;  // rows whose computation takes as long as what an item does for each block besides
constexpr int64_t kPartialSequences = 8;  // room for as many of the longest sequences to be cut

// The message is made when it is needed only: a step does not allocate.
void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

[[noreturn]] void refuse_slot(const SequenceInput& s, const char* why) {
  throw std::invalid_argument("slot " + std::to_string(s.slot) + " of a plan " + why);
}

int32_t first_block(int32_t window, int32_t position) {
  return window > 0 && position - window + 1 > 0 ? (position - window + 1) / kAttentionBlock : 0;
}

}  // namespace

Step::Step(const Limits& limits, const HeadGeometry& heads, int threads)
    : limits_(limits),
      heads_(heads),
      threads_(threads),
      max_positions_(limits.pages_per_slot * kPageTokens),
      named_(static_cast<size_t>(limits.max_slots)) {
  const auto max_tokens = static_cast<size_t>(limits.max_tokens), max_slots = static_cast<size_t>(limits.max_slots);
  tokens.reserve(max_tokens);
  runs.reserve(max_tokens + max_slots);
  sequences.reserve(max_slots);
  plan.reserve(max_slots);
  logit_rows.reserve(static_cast<size_t>(limits.max_logit_rows));
}

int64_t Step::partial_rows(int64_t pages_per_slot) {
  return kPartialSequences * kAttentionRows * ceil_div(pages_per_slot * kPageTokens, kAttentionBlock);
}

int Step::add_window(int32_t window) {
  for (size_t i = 0; i < attention.size(); ++i)
    if (attention[i].window == window) return static_cast<int>(i);
  AttentionWork work;
  work.window = window;
  // Either every sequence has one item a KV head and block of rows, or it is cut within `partial_rows`.
  const int64_t group = heads_.kv_heads > 0 ? heads_.q_heads / heads_.kv_heads : 1;
  const int64_t items = heads_.kv_heads * (limits_.max_slots + ceil_div(limits_.max_tokens * group, kAttentionRows));
  work.items.reserve(static_cast<size_t>(items + partial_rows(limits_.pages_per_slot)));
  work.merges.reserve(static_cast<size_t>(heads_.latent() ? partial_rows(limits_.pages_per_slot) : items));
  attention.push_back(std::move(work));
  return static_cast<int>(attention.size()) - 1;
}

void Step::check(std::span<const SequenceInput> sequences_in, std::span<const int32_t> tokens_in,
                 std::span<const int32_t> targets, SlotTable& slots) {
  require(static_cast<int64_t>(sequences_in.size()) <= limits_.max_slots,
          "a plan names more sequences than there are slots");
  int64_t total = 0, literal = 0, wanted_targets = 0, rows = 0;
  named_.assign(named_.size(), false);
  for (const SequenceInput& s : sequences_in) {
    const Slot& slot = slots.at(s.slot);
    // Two threads would write the same tokens' K and V.
    if (named_[static_cast<size_t>(s.slot)]) refuse_slot(s, "is named twice");
    named_[static_cast<size_t>(s.slot)] = true;
    if (s.count <= 0 || s.start < 0) refuse_slot(s, "has no new token");
    if (s.from_previous && (s.count != 1 || slot.last_token < 0))
      refuse_slot(s, "has no previous sample to go on from");
    const int64_t end = int64_t{s.start} + s.count;
    if (end > static_cast<int64_t>(slot.pages.size()) * kPageTokens)
      refuse_slot(s, "has a page table that does not reach the new tokens");
    if (end > max_positions_) refuse_slot(s, "goes on beyond the context that the model was loaded for");
    if (s.num_targets < 0 || s.num_targets > s.count) refuse_slot(s, "has more targets than new tokens");
    total += s.count;
    literal += s.from_previous ? 0 : s.count;
    wanted_targets += s.num_targets;
    rows += s.num_targets + (s.sample && s.num_targets < s.count);
  }
  require(total <= limits_.max_tokens, "a plan has more tokens than the step budget");
  require(rows <= limits_.max_logit_rows, "a plan wants more rows of logits than there is room for");
  require(literal == static_cast<int64_t>(tokens_in.size()), "the number of token ids is not that of the plan");
  require(wanted_targets == static_cast<int64_t>(targets.size()), "the number of targets is not that of the plan");
  for (const std::span<const int32_t> ids : {tokens_in, targets})
    for (const int32_t id : ids)
      if (id < 0 || id >= limits_.vocabulary)
        throw std::invalid_argument("token id " + std::to_string(id) + " is not in the vocabulary");
}

void Step::begin(std::span<const SequenceInput> sequences_in, std::span<const int32_t> tokens_in,
                 std::span<const int32_t> targets, SlotTable& slots) {
  check(sequences_in, tokens_in, targets, slots);
  tokens.clear();
  runs.clear();
  sequences.clear();
  logit_rows.clear();
  plan.assign(sequences_in.begin(), sequences_in.end());
  for (size_t i = 0; i < plan.size(); ++i) {
    const SequenceInput& s = plan[i];
    const Slot& slot = slots.at(s.slot);
    const auto row = static_cast<int32_t>(tokens.size());
    if (s.from_previous) {
      tokens.push_back(slot.last_token);
    } else {
      tokens.insert(tokens.end(), tokens_in.begin(), tokens_in.begin() + s.count);
      tokens_in = tokens_in.subspan(static_cast<size_t>(s.count));
    }
    sequences.push_back({.row = row, .q_len = s.count, .start = s.start, .pages = slot.pages.data()});
    add_runs(s, row, slot);
    add_rows(s, static_cast<int32_t>(i), row, targets);
  }
  for (AttentionWork& work : attention) {
    plan_attention(work);
    count_attention(work);
  }
  ++totals.steps;
  totals.tokens += num_tokens();
  totals.logit_steps += !logit_rows.empty();
  totals.logit_rows += static_cast<int64_t>(logit_rows.size());
}

void Step::count_attention(AttentionWork& work) const {
  for (const AttentionSequence& s : sequences) {
    const int64_t start = s.start, rows = s.q_len;
    const int64_t window = work.window > 0 ? work.window : start + rows;
    const int64_t growing = std::clamp<int64_t>(window - start, 0, rows);  // tokens that see everything before them
    work.positions += start + rows - std::max<int64_t>(start - window + 1, 0);
    work.pairs += growing * start + growing * (growing + 1) / 2 + (rows - growing) * window;
  }
}

void Step::add_runs(const SequenceInput& s, int32_t row, const Slot& slot) {
  for (int32_t done = 0; done < s.count;) {
    const int32_t position = s.start + done;
    const int32_t count = std::min(s.count - done, kPageTokens - position % kPageTokens);
    runs.push_back({.row = row + done,
                    .count = count,
                    .position = position,
                    .page = slot.pages[static_cast<size_t>(position / kPageTokens)]});
    done += count;
  }
}

void Step::add_rows(const SequenceInput& s, int32_t index, int32_t row, std::span<const int32_t>& targets) {
  for (int32_t t = 0; t < s.count; ++t) {
    const bool sample = s.sample && t == s.count - 1;
    if (!sample && t >= s.num_targets) continue;
    logit_rows.push_back({.row = row + t,
                          .sequence = index,
                          .position = s.start + t + 1,
                          .target = t < s.num_targets ? targets[static_cast<size_t>(t)] : -1,
                          .sample = sample});
  }
  targets = targets.subspan(static_cast<size_t>(s.num_targets));
}

Step::Cut Step::cut_heads(int32_t window) const {
  int64_t whole_items = 0, cut_rows = 0;
  for (const AttentionSequence& s : sequences) {
    const int32_t rows = s.q_len * heads_.q_heads / heads_.kv_heads;
    const int64_t blocks = ceil_div(s.start + s.q_len, kAttentionBlock) - first_block(window, s.start);
    whole_items += heads_.kv_heads * ceil_div(rows, kAttentionRows);
    cut_rows += blocks > 1 ? heads_.kv_heads * rows * blocks : 0;
  }
  const bool cut = whole_items < kItemsPerThread * threads_ && cut_rows <= partial_rows(limits_.pages_per_slot);
  return {kAttentionRows, cut};
}

// Of some ways to cut the one that keeps the busiest thread busy for the shortest time. Items of many rows turn the
// values of a block once for all of them, and read it once; there may be too few of them for all threads.
Step::Cut Step::cut_latent() const {
  Cut best{kLatentRows, false};
  int64_t shortest = INT64_MAX;
  for (int32_t rows = kLatentRows; rows >= kAttentionRows; rows /= 2)
    for (const bool cut : {false, true}) {
      int64_t items = 0, most = 0, total = 0, cut_rows = 0;
      for (const AttentionSequence& s : sequences) {
        const int64_t all = int64_t{s.q_len} * heads_.q_heads, blocks = ceil_div(s.start + s.q_len, kAttentionBlock);
        const int64_t count = ceil_div(all, rows) * (cut ? blocks : 1), height = std::min<int64_t>(all, rows);
        const int64_t cost = cut ? kItemRows + height + height / 8 : blocks * (kItemRows + height);  // with the merge
        items += count;
        most = std::max(most, cost);
        total += count * cost;
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

void Step::plan_attention(AttentionWork& work) const {
  work.items.clear();
  work.merges.clear();
  if (heads_.kv_heads == 0) return;
  const int32_t group = heads_.q_heads / heads_.kv_heads;
  const Cut cut = heads_.latent() ? cut_latent() : cut_heads(work.window);
  int64_t partial = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttentionSequence& s = sequences[i];
    const int32_t rows = s.q_len * group;
    for (int32_t row = 0; row < rows; row += cut.rows) {
      const int32_t num_rows = std::min(rows - row, cut.rows);
      const int32_t begin = first_block(work.window, s.start + row / group);
      const int32_t end = (s.start + (row + num_rows - 1) / group) / kAttentionBlock + 1;
      for (int32_t head = 0; head < heads_.kv_heads; ++head) {
        AttentionItem item{.sequence = static_cast<int32_t>(i),
                           .kv_head = head,
                           .first_row = row,
                           .num_rows = num_rows,
                           .block = -1,
                           .partial = partial};
        if (!cut.blocks || end - begin == 1) {
          work.items.push_back(item);
          continue;
        }
        item.block = begin;
        const int32_t merged = heads_.latent() ? 1 : num_rows;  // their rows are long: a merge each
        for (int32_t r = 0; r < num_rows; r += merged) {
          AttentionItem rows_of = item;
          rows_of.first_row += r;
          rows_of.num_rows = merged;
          rows_of.partial += r;
          work.merges.push_back({.first = rows_of, .blocks = end - begin, .stride = num_rows});
        }
        for (; item.block < end; ++item.block, item.partial += num_rows) work.items.push_back(item);
        partial = item.partial;
      }
    }
  }
  const auto cost = [&](const AttentionItem& item) {
    const AttentionSequence& s = sequences[static_cast<size_t>(item.sequence)];
    const int64_t length = item.block >= 0 ? kAttentionBlock : s.start + (item.first_row + item.num_rows - 1) / group;
    return length * (kItemRows + item.num_rows);
  };
  std::sort(work.items.begin(), work.items.end(),
            [&](const AttentionItem& a, const AttentionItem& b) { return cost(a) > cost(b); });
}

}  // namespace numaserve
