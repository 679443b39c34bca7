#include "kernels/runtime/program/step.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace numaserve {
namespace {

// The message is built only when needed: a step does not allocate.
void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

[[noreturn]] void refuse_slot(const SequenceInput& s, const char* why) {
  throw std::invalid_argument("slot " + std::to_string(s.slot) + " of the step " + why);
}

void require_ids(std::span<const int32_t> ids, int64_t count) {
  for (const int32_t id : ids)
    if (id < 0 || id >= count)
      throw std::invalid_argument("token id " + std::to_string(id) + " is not in the vocabulary");
}

std::vector<Window> windows_of(std::span<const CacheKind> kinds) {
  std::vector<Window> windows(1);
  for (const CacheKind& kind : kinds) {
    windows.resize(std::max(windows.size(), kind.table + 1));
    if (kind.table > 0) windows[kind.table] = kind.window;
  }
  return windows;
}

}  // namespace

Step::Step(const Limits& limits, std::span<const CacheKind> kinds, const ContextParallel& parallel, int threads)
    : indices(limits.max_step_tokens),
      limits_(limits),
      parallel_(parallel),
      windows_(windows_of(kinds)),
      whole_(limits, kinds, parallel.world, threads),
      max_positions_(limits.pages_per_slot() * kPageTokens),
      named_(static_cast<size_t>(limits.max_slots)),
      stored_(static_cast<size_t>(limits.num_snapshots)) {
  for (const CacheKind& kind : kinds) {
    takes_whole_ |= kind.window.bidirectional;
    whole_images_ |= kind.window.images;
  }
  if (whole_images_) image_ends_.resize(static_cast<size_t>(limits.max_step_tokens));
  const auto max_slots = static_cast<size_t>(limits.max_slots);
  plan.reserve(max_slots);
  segments.reserve(2 * max_slots + stored_.size());
  chains.reserve(max_slots);
  logit_rows.reserve(static_cast<size_t>(limits.max_logit_rows));
  pooled_rows.reserve(max_slots);
  pooled_sequences.reserve(max_slots);
  if (parallel.world == 1) return;
  divided_planner_.emplace(limits, parallel.all_heads(kinds.front().heads), BlockGroups{parallel.world, parallel.rank},
                           threads);
  divided.work = divided_planner_->make_work({});
  divided.sequences.reserve(static_cast<size_t>(parallel.max_rows));
  divided.rows.reserve(static_cast<size_t>(parallel.max_rows));
}

void Step::allow_narrowing(std::span<const CacheKind> kinds, int threads) {
  Limits limits = limits_;
  limits.max_step_tokens = limits.max_logit_rows;
  limits.max_slots *= 2;  // rows with targets and rows with samples of a sequence may lie apart
  narrowed_.emplace(limits, kinds, parallel_.world, threads);
}

void Step::allow_adapters(int64_t places) {
  adapter_places_ = places;
  adapters_.reserve(static_cast<size_t>(limits_.max_step_tokens));
  narrow_adapters_.reserve(static_cast<size_t>(limits_.max_logit_rows));
}

void Step::take_tiles(int64_t patches, int64_t merged, int64_t extra, bool many) {
  require(patches > 0 && merged > 0 && patches % merged == 0, "the patches of a tile cannot be merged");
  // The quotient of all tokens is then the number of rows.
  require(extra >= 0 && extra < merged && (extra == 0 || !many), "a tile has too many tokens that are no patches");
  require(patches + extra <= limits_.max_step_tokens, "a tile has more patches than the limit of a step");
  tile_ = patches + extra;
  merged_ = merged;
  many_tiles_ = many;
  lone_tile_ = extra > 0;
}

void Step::check(std::span<const SequenceInput> sequences_in, std::span<const int32_t> tokens_in,
                 std::span<const int32_t> targets, SlotTable& slots) {
  require(static_cast<int64_t>(sequences_in.size()) <= limits_.max_slots, "the step has more sequences than slots");
  require(!lone_tile_ || sequences_in.size() <= 1, "the step has more than one tile with tokens that are no patches");
  int64_t total = 0, literal = 0, wanted_targets = 0, rows = 0;
  named_.assign(named_.size(), false);
  for (const SequenceInput& s : sequences_in) {
    const Slot& slot = slots.at(s.slot);
    // Otherwise two threads would write K and V of the same tokens.
    if (named_[static_cast<size_t>(s.slot)]) refuse_slot(s, "is named twice");
    named_[static_cast<size_t>(s.slot)] = true;
    if (s.count <= 0 || s.start < 0) refuse_slot(s, "has no new token");
    if (s.from_previous && (s.count != 1 || slot.last_token < 0))
      refuse_slot(s, "has no sampled token to continue from");
    check_pages(s, slot);
    if (int64_t{s.start} + s.count > max_positions_)
      refuse_slot(s, "exceeds the context that the model was loaded for");
    if (s.num_targets < 0 || s.num_targets > s.count) refuse_slot(s, "has more target tokens than new tokens");
    if (s.drafts < 0 || (s.drafts > 0 && (s.drafts >= s.count || !s.sample || s.num_targets > 0)))
      refuse_slot(s, "has draft tokens, but no sampled token before them");
    if (slot.masked && s.drafts > kMaxMaskedDrafts) refuse_slot(s, "has more draft tokens than masks");
    if (s.pool && !may_pool_)
      refuse_slot(s, "asks for an embedding, but the model was loaded without support for embeddings");
    if (s.tokens && !may_give_tokens_) refuse_slot(s, "asks for vectors of its tokens, but the model has none");
    check_whole(s);
    check_images(s, slot);
    check_adapter(s, slot);
    total += s.count;
    literal += s.from_previous ? 0 : s.count;
    wanted_targets += s.num_targets;
    rows += s.num_targets + (s.sample && s.num_targets < s.count) + s.drafts;
  }
  require(total <= limits_.max_step_tokens, "the step has more tokens than the limit of a step");
  require(rows <= limits_.max_logit_rows, "the step has more rows of logits than the model was loaded for");
  require(literal == static_cast<int64_t>(tokens_in.size()),
          "the number of token ids does not match the sequences of the step");
  require(wanted_targets == static_cast<int64_t>(targets.size()),
          "the number of tokens to score does not match the sequences of the step");
  require_ids(tokens_in, limits_.vocabulary + limits_.extra_tokens);
  require_ids(targets, limits_.vocabulary);
  check_states(sequences_in, slots);
}

void Step::check_whole(const SequenceInput& s) const {
  const bool whole = s.start == 0 && s.drafts == 0;
  if (tile_ > 0) {
    if (!whole || (many_tiles_ ? s.count % tile_ != 0 : s.count != tile_))
      refuse_slot(s, ("is not a whole tile of " + std::to_string(tile_) + " patches").c_str());
  } else if (takes_whole_ && (!whole || !s.pool)) {
    refuse_slot(s, "is not a whole sequence to be pooled, which bidirectional attention needs");
  }
}

void Step::check_images(const SequenceInput& s, const Slot& slot) const {
  const std::vector<int32_t>& grids = slot.declared.grids;
  const int64_t begin = s.start, end = begin + s.count;
  for (size_t i = 0; whole_images_ && i + 2 < grids.size(); i += 3) {
    const int64_t first = grids[i], last = first + int64_t{grids[i + 1]} * grids[i + 2];
    if (first < end && last > begin && (first < begin || last > end))
      refuse_slot(s, "has a part of an image, whose tokens see each other");
  }
}

const int32_t* Step::list_image_ends(const SequenceInput& s, const Slot& slot, int32_t row) {
  const std::vector<int32_t>& grids = slot.declared.grids;
  if (!whole_images_ || grids.empty()) return nullptr;
  int32_t* const ends = image_ends_.data() + row;
  std::fill_n(ends, s.count, 0);
  bool has_images = false;
  for (size_t i = 0; i + 2 < grids.size(); i += 3) {
    const int32_t count = grids[i + 1] * grids[i + 2], at = grids[i] - s.start;
    if (at < 0 || at >= s.count) continue;
    std::fill_n(ends + at, count, grids[i] + count);
    has_images = true;
  }
  return has_images ? ends : nullptr;
}

void Step::check_adapter(const SequenceInput& s, const Slot& slot) const {
  const int32_t number = slot.declared.adapter;
  if (number < 0 || number > adapter_places_) refuse_slot(s, "names an adapter that has no place");
}

// The rows of a step that are narrow are those of logits, as far as adapters are concerned: what follows the pooling of
// sequences has none.
void Step::list_adapters(SlotTable& slots) {
  adapters_.clear();
  narrow_adapters_.clear();
  const auto of = [&](const SequenceInput& s) { return slots.at(s.slot).declared.adapter; };
  if (std::ranges::none_of(plan, [&](const SequenceInput& s) { return of(s) > 0; })) return;
  for (const SequenceInput& s : plan) adapters_.insert(adapters_.end(), static_cast<size_t>(s.count), of(s));
  for (const LogitRow& row : logit_rows) narrow_adapters_.push_back(adapters_[static_cast<size_t>(row.row)]);
}

// Run after the checks of sequences: their rows in the batch are known.
void Step::place_features(std::span<const SequenceInput> sequences_in, std::span<const PlacedRows> placed) {
  feature_rows.clear();
  if (placed.empty()) return;
  int64_t total = 0;
  for (const SequenceInput& s : sequences_in) total += s.count;
  feature_rows.assign(static_cast<size_t>(total), -1);
  for (const PlacedRows& p : placed) {
    require(p.sequence >= 0 && static_cast<size_t>(p.sequence) < sequences_in.size(),
            "the step places image features in a sequence that is not in it");
    const SequenceInput& s = sequences_in[static_cast<size_t>(p.sequence)];
    if (p.count <= 0 || p.start < s.start || int64_t{p.start} + p.count > int64_t{s.start} + s.count)
      refuse_slot(s, "has image features at positions that are not among its new tokens");
    if (p.row < 0 || int64_t{p.row} + p.count > pool_rows_)
      refuse_slot(s,
                  ("has image features that are not in the pool of " + std::to_string(pool_rows_) + " rows").c_str());
    int64_t first = p.start - s.start;
    for (int32_t i = 0; i < p.sequence; ++i) first += sequences_in[static_cast<size_t>(i)].count;
    for (int32_t i = 0; i < p.count; ++i) {
      int32_t& row = feature_rows[static_cast<size_t>(first + i)];
      if (row >= 0) refuse_slot(s, "has two image features for one token");
      row = p.row + i;
    }
  }
}

void Step::check_pages(const SequenceInput& s, const Slot& slot) const {
  const int64_t end = int64_t{s.start} + s.count;
  for (size_t i = 0; i < windows_.size(); ++i) {
    const PageTable& table = slot.tables[i];
    if (end > static_cast<int64_t>(table.pages.size()) * kPageTokens)
      refuse_slot(s, "has a page table that is too short for the new tokens");
    if (table.first > windows_[i].first(s.start) / kPageTokens)
      refuse_slot(s, "reads pages of a window table that were given back");
  }
}

void Step::check_marks(const SequenceInput& s) {
  const int64_t known = int64_t{s.start} + s.count - s.drafts;
  int64_t before = s.start;
  for (const auto& [position, snapshot] : s.marks) {
    if (snapshot < 0 || snapshot >= limits_.num_snapshots) refuse_slot(s, "stores a snapshot that does not exist");
    if (stored_[static_cast<size_t>(snapshot)]) refuse_slot(s, "stores a snapshot that the step stores twice");
    if (position <= before || position > known)
      refuse_slot(s, "has a mark that is not among its known tokens, in order");
    stored_[static_cast<size_t>(snapshot)] = true;
    before = position;
  }
}

// A snapshot that is stored has no other use in the step: the threads that load and store it would race.
void Step::check_states(std::span<const SequenceInput> sequences_in, SlotTable& slots) {
  stored_.assign(stored_.size(), false);
  for (const SequenceInput& s : sequences_in) check_marks(s);
  for (const SequenceInput& s : sequences_in) {
    if (s.begin < -1 || s.begin >= limits_.num_snapshots) refuse_slot(s, "begins with a snapshot that does not exist");
    if (s.begin >= 0 && s.start == 0) refuse_slot(s, "begins with a snapshot at position 0");
    if (s.begin >= 0 && stored_[static_cast<size_t>(s.begin)])
      refuse_slot(s, "begins with a snapshot that the step stores");
    if (!keeps_states_) continue;
    if (s.drafts > limits_.max_drafts) refuse_slot(s, "has more draft tokens than its states can go back");
    const Slot& slot = slots.at(s.slot);
    const int64_t behind = int64_t{s.start} - slot.state_position;
    if (s.start > 0 && s.begin < 0 && (behind < 0 || behind > slot.state_drafts))
      refuse_slot(s, ("begins at position " + std::to_string(s.start) + ", but its states are those after " +
                      std::to_string(slot.state_position) + " tokens")
                         .c_str());
  }
}

void Step::begin(std::span<const SequenceInput> sequences_in, std::span<const int32_t> tokens_in,
                 std::span<const int32_t> targets, SlotTable& slots, std::span<const PlacedRows> placed) {
  check(sequences_in, tokens_in, targets, slots);
  place_features(sequences_in, placed);
  indices.clear();
  whole_.clear();
  if (narrowed_) narrowed_->clear();
  segments.clear();
  chains.clear();
  has_drafts = wants_tokens = false;
  logit_rows.clear();
  num_named = 0;
  pooled_rows.clear();
  pooled_sequences.clear();
  divided.sequences.clear();
  divided.rows.clear();
  plan.assign(sequences_in.begin(), sequences_in.end());
  for (size_t i = 0; i < plan.size(); ++i) {
    const SequenceInput& s = plan[i];
    Slot& slot = slots.at(s.slot);
    const auto row = static_cast<int32_t>(num_tokens());
    const size_t literal = s.from_previous ? 0 : static_cast<size_t>(s.count);
    const std::span<const int32_t> own = s.from_previous ? std::span(&slot.last_token, 1) : tokens_in.first(literal);
    tokens_in = tokens_in.subspan(literal);
    indices.add({.tokens = own, .start = s.start, .declared = slot.declared});
    const int32_t* const image_ends = list_image_ends(s, slot, row);
    whole_.add(slot, row, s.start, s.count, image_ends);
    divide_last();
    add_segments(s, row, slot);
    const size_t first_row = logit_rows.size();
    add_rows(s, slot, static_cast<int32_t>(i), row, targets);
    if (narrowed_) add_narrowed(slot, first_row, image_ends == nullptr ? nullptr : image_ends_.data());
    if (s.pool) {
      wants_tokens = wants_tokens || s.tokens;
      pooled_rows.push_back({row, s.count});
      pooled_sequences.push_back(static_cast<int32_t>(i));
    }
  }
  if (adapter_places_ > 0) list_adapters(slots);
  whole_.plan();
  if (narrowed_) narrowed_->plan();
  if (divided_planner_) divided_planner_->plan(divided.sequences, divided.work);
  totals.steps += counts();
  totals.tokens += num_tokens();
  totals.sequences += static_cast<int64_t>(plan.size());
  totals.last_steps += num_rows(true) > 0;
  totals.logit_rows += static_cast<int64_t>(logit_rows.size());
  totals.pooled += static_cast<int64_t>(pooled_rows.size());
  totals.merged += merged_rows();
  totals.divided += static_cast<int64_t>(divided.rows.size());
}

void Step::divide_last() {
  std::vector<AttentionSequence>& whole = whole_.tables.front().sequences;
  AttentionSequence sequence = whole.back();
  const auto row = static_cast<int32_t>(divided.rows.size());
  const int64_t end = int64_t{sequence.start} + sequence.q_len;
  if (parallel_.world == 1 || end < parallel_.from * sequence.q_len || row + sequence.q_len > parallel_.max_rows)
    return;
  whole.pop_back();
  for (int32_t i = 0; i < sequence.q_len; ++i) divided.rows.push_back(sequence.row + i);
  sequence.row = row;
  divided.sequences.push_back(sequence);
}

void Step::add_segments(const SequenceInput& s, int32_t row, Slot& slot) {
  const auto slots = static_cast<int32_t>(limits_.max_slots), first = static_cast<int32_t>(segments.size());
  const int32_t known = s.start + s.count - s.drafts;
  int32_t load = s.begin >= 0 ? slots + s.begin : s.start > 0 ? s.slot : -1, done = s.start;
  int32_t replayed = load == s.slot && keeps_states_ ? s.start - slot.state_position : 0;
  const auto add = [&](int32_t end, int32_t store) {
    segments.push_back(
        {.row = row + done - s.start, .count = end - done, .load = load, .store = store, .replayed = replayed});
    load = store;
    replayed = 0;
    done = end;
  };
  for (const StateMark& mark : s.marks) add(mark.position, slots + mark.snapshot);
  add(known, s.slot);
  if (s.drafts > 0) add(s.start + s.count, -1);
  has_drafts = has_drafts || s.drafts > 0;
  chains.push_back({first, static_cast<int64_t>(segments.size())});
  slot.state_position = known;
  slot.state_drafts = s.drafts;
}

// Consecutive rows are attended together.
void Step::add_narrowed(const Slot& slot, size_t first_row, const int32_t* image_ends) {
  for (size_t begin = first_row, end = begin; begin < logit_rows.size(); begin = end) {
    for (++end; end < logit_rows.size() && logit_rows[end].row == logit_rows[end - 1].row + 1;) ++end;
    narrowed_->add(slot, static_cast<int32_t>(begin), logit_rows[begin].position - 1, static_cast<int32_t>(end - begin),
                   image_ends == nullptr ? nullptr : image_ends + logit_rows[begin].row);
  }
}

void Step::add_rows(const SequenceInput& s, const Slot& slot, int32_t index, int32_t row,
                    std::span<const int32_t>& targets) {
  const int32_t first_sample = s.count - 1 - s.drafts;
  const std::span<const int32_t> own = tokens().subspan(static_cast<size_t>(row));
  for (int32_t t = 0; t < s.count; ++t) {
    const bool sample = s.sample && t >= first_sample;
    if (!sample && t >= s.num_targets) continue;
    const int64_t first_named = num_named;
    if (sample) num_named += static_cast<int64_t>(slot.named_ids.size());
    logit_rows.push_back({.row = row + t,
                          .sequence = index,
                          .position = s.start + t + 1,
                          .target = t < s.num_targets ? targets[static_cast<size_t>(t)] : -1,
                          .sample = sample,
                          .draft = sample && t + 1 < s.count ? own[static_cast<size_t>(t) + 1] : -1,
                          .behind = sample ? t - first_sample : 0,
                          .named = {first_named, num_named}});
  }
  targets = targets.subspan(static_cast<size_t>(s.num_targets));
}

}  // namespace numaserve
