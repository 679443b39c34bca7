#include "kernels/runtime/attention/attention_cuts.h"

#include <algorithm>
#include <functional>
#include <tuple>

namespace numaserve {
namespace {

// A thread may exceed the mean cost by 1 / kSlack of it. Items below that are never cut.
constexpr int64_t kSlack = 16;
// A thread's share of all that is cut consists of items of 1 / kLargePiece of it, of which there are few, and of items
// of 1 / kSmallPiece of it. The small ones are handed out last, so that threads end at about the same time. Each takes
// half of an item's blocks.
constexpr int64_t kLargePiece = 4, kSmallPiece = 16;
constexpr int64_t kPartialCost = kAttentionBlock / 8;  // of a row's partial result; a row's token costs 1

// Returns whether `a` is handed out before `b`.
bool before(const SizedItem& a, const SizedItem& b) {
  const auto key = [](const SizedItem& s) {
    return std::tuple(-s.cost, s.item.sequence, s.item.first_row, s.item.kv_head, s.item.block);
  };
  return key(a) < key(b);
}

int64_t block_cost(const SizedItem& s) { return std::max<int64_t>(s.cost / s.blocks, 1); }

// Returns the rows of partial results of an item whose first `joined` blocks are merged at once.
int64_t partial_rows_of(const SizedItem& s, int32_t joined) {
  return joined == s.blocks ? 0 : int64_t{s.item.num_rows} * (s.blocks - joined + (joined > 0 ? 1 : 0));
}

// The costs of threads, of which the least busy one takes the next item.
class Loads {
 public:
  Loads(std::vector<int64_t>& loads, int threads) : loads_(loads) { loads_.assign(static_cast<size_t>(threads), 0); }
  int64_t least() const { return loads_.front(); }
  int64_t most() const { return *std::max_element(loads_.begin(), loads_.end()); }
  void take(int64_t cost) {
    std::pop_heap(loads_.begin(), loads_.end(), std::greater<>());
    loads_.back() += cost;
    std::push_heap(loads_.begin(), loads_.end(), std::greater<>());
  }

 private:
  std::vector<int64_t>& loads_;  // a heap, the least first
};

// Calls `piece(at, count, cost)` for the items that `s` is cut into, each of `count` of its blocks from the `at`-th on.
// `share`: a thread's share of all that is cut.
void for_pieces(const SizedItem& s, int64_t share, auto&& piece) {
  const int64_t one = block_cost(s), result = s.item.num_rows * kPartialCost;
  const auto blocks_of = [&](int64_t part) { return static_cast<int32_t>(std::max<int64_t>(share / part / one, 1)); };
  const int32_t large = blocks_of(kLargePiece), small = blocks_of(kSmallPiece);
  if (s.joined > 0) piece(0, s.joined, s.joined * one + result);
  for (int32_t at = s.joined; at < s.blocks;) {
    const int32_t left = s.blocks - at, count = std::min(2 * left > s.blocks ? large : small, left);
    piece(at, count, count * (one + result));
    at += count;
  }
}

}  // namespace

int64_t ItemCutter::most_items(int64_t whole) const {
  // An item of some blocks costs at least half of a small piece, or it is the last one of its size.
  return 3 * whole + 2 * kSmallPiece * threads_;
}

int64_t ItemCutter::mean(std::span<const SizedItem> items) const {
  int64_t total = 0;
  for (const SizedItem& s : items) total += s.cost;
  return std::max<int64_t>(ceil_div(total, threads_), 1);
}

int64_t ItemCutter::share(std::span<const SizedItem> items) const {
  int64_t total = 0;
  for (const SizedItem& s : items) total += s.is_whole() ? 0 : s.cost;
  return total / threads_;
}

int64_t ItemCutter::decide(std::vector<SizedItem>& items, std::vector<int64_t>& memory) const {
  std::sort(items.begin(), items.end(), before);
  // An item of more than half of a thread's work is alone, and is compared with the mean that such items give.
  const int64_t mean = this->mean(items);
  const auto is_alone = [&](const SizedItem& s) { return 2 * s.cost > mean; };
  int64_t total = 0;
  for (const SizedItem& s : items) total += is_alone(s) ? s.alone : s.cost;
  const int64_t mean_alone = ceil_div(total, threads_);
  Loads loads(memory, threads_);
  for (SizedItem& s : items) {
    const int64_t cost = is_alone(s) ? s.alone : s.cost, bound = is_alone(s) ? mean_alone : mean;
    const bool is_small = cost * kSlack <= mean, fits = is_small || loads.least() + cost <= bound + bound / kSlack;
    s.joined = fits || s.blocks == 1 ? s.blocks : 0;
    if (s.is_whole() && !is_small) loads.take(cost);
  }
  if (joins_)
    join_blocks(items);
  else
    keep_whole(items);
  return busiest(items, memory);
}

// Returns the cost of the busiest thread. Small items fill threads up.
int64_t ItemCutter::busiest(std::span<const SizedItem> items, std::vector<int64_t>& memory) const {
  int64_t total = 0;
  const int64_t share = this->share(items), mean = this->mean(items);
  Loads loads(memory, threads_);
  const auto add = [&](int64_t cost) {
    total += cost;
    if (cost * kSlack > mean) loads.take(cost);
  };
  for (const SizedItem& s : items)
    if (s.is_whole())
      add(s.cost);
    else
      for_pieces(s, share, [&](int32_t, int32_t, int64_t cost) { add(cost); });
  return std::max(loads.most(), ceil_div(total, threads_));
}

// Joins the first blocks of each item that is to be cut: few of them, or as many as leave memory for partial results of
// the other blocks. The largest item of joined blocks is then as small as possible.
void ItemCutter::join_blocks(std::span<SizedItem> items) const {
  const int64_t piece = share(items) / kLargePiece;
  const auto joined = [&](const SizedItem& s, int64_t cost) {
    const int64_t one = block_cost(s), least = std::clamp<int64_t>(piece / one, 1, s.blocks / 2);
    return static_cast<int32_t>(std::clamp<int64_t>(cost * s.blocks / s.alone, least, s.blocks));
  };
  const auto fits = [&](int64_t cost) {
    int64_t rows = 0;
    for (const SizedItem& s : items) rows += s.is_whole() ? 0 : partial_rows_of(s, joined(s, cost));
    return rows <= partial_rows_;
  };
  int64_t cost = 0, most_alone = 1;
  for (const SizedItem& s : items) most_alone = std::max(most_alone, s.alone);
  if (!fits(cost))
    for (int64_t high = most_alone; cost < high;) {
      const int64_t middle = cost + (high - cost) / 2;
      if (fits(middle))
        high = middle;
      else
        cost = middle + 1;
    }
  for (SizedItem& s : items)
    if (!s.is_whole()) s.joined = joined(s, cost);
}

// Keeps items whole for whose partial results there is no memory left.
void ItemCutter::keep_whole(std::span<SizedItem> items) const {
  int64_t rows = 0;
  for (SizedItem& s : items) {
    const int64_t more = s.is_whole() ? 0 : partial_rows_of(s, 0);
    if (rows + more > partial_rows_)
      s.joined = s.blocks;
    else
      rows += more;
  }
}

void ItemCutter::cut(std::vector<SizedItem>& items, std::vector<PartialMerge>& merges) const {
  const int64_t share = this->share(items);
  int64_t partial = 0;
  const size_t whole = items.size();
  for (size_t i = 0; i < whole; ++i) {
    const SizedItem s = items[i];
    if (s.is_whole()) continue;
    const int64_t parts = partial_rows_of(s, s.joined) / s.item.num_rows;
    AttentionItem piece = s.item;
    for_pieces(s, share, [&](int32_t at, int32_t count, int64_t cost) {
      piece.block = s.first + at * block_step_;
      piece.blocks = count;
      piece.joined = at < s.joined;
      piece.partial = partial + (s.joined > 0 && at > 0 ? at - s.joined + 1 : at) * s.item.num_rows;
      SizedItem part{
          .item = piece, .cost = cost, .alone = cost, .first = piece.block, .blocks = count, .joined = count};
      if (at == 0)
        items[i] = part;
      else
        items.push_back(part);
    });
    // A merge for each row, because there may be fewer items than threads.
    for (int32_t r = 0; r < s.item.num_rows; ++r) {
      AttentionItem row = s.item;
      row.first_row += r;
      row.num_rows = 1;
      row.partial = partial + r;
      merges.push_back({.first = row, .parts = static_cast<int32_t>(parts), .stride = s.item.num_rows});
    }
    partial += partial_rows_of(s, s.joined);
  }
  std::sort(items.begin(), items.end(), before);
}

}  // namespace numaserve
