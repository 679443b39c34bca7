#include "kernels/runtime/program/program.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "kernels/cpu_features.h"
#include "kernels/runtime/machine/ahead.h"

namespace numaserve {
namespace {

// Weights and keys to fetch in advance: at most half of the second-level cache, and at most what memory delivers while
// threads wait for each other.
constexpr int64_t kMostAhead = 512 << 10;

int64_t scratch_for(const KernelTable& table, const ProgramShape& shape) {
  int64_t most = std::max(table.gemm_scratch, sample_scratch_bytes(shape.limits.vocabulary));
  if (!shape.states.empty()) most = std::max(most, kDeltaScratch);
  for (const CacheKind& kind : shape.caches)
    most = std::max(most, kind.heads.latent ? table.latent_attention_scratch : table.attention_scratch);
  return round_up(most, 4096);
}

// Kernels that count leave the memory alone, and nodes touch a little here and there. Huge pages for these bytes would
// be gigabytes at the size of a large host.
Pages pages_of(const Counter* counter) { return counter == nullptr ? Pages::kHuge : Pages::kSmall; }

// Latents are divided only where all layers have the same kind of cache: a divided sequence is planned apart.
const ContextParallel& checked(const ProgramShape& shape, const ring::Ring* ring) {
  const ContextParallel& parallel = shape.parallel;
  if (parallel.world == 1) return parallel;
  const std::vector<int32_t>& bounds = parallel.head_bounds;
  if (shape.caches.size() != 1 || !shape.caches.front().heads.latent || ring == nullptr ||
      ring->world() != parallel.world || ring->rank() != parallel.rank ||
      bounds.size() != static_cast<size_t>(parallel.world) + 1 || bounds.front() != 0 ||
      std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) != bounds.end() ||
      bounds[static_cast<size_t>(parallel.rank) + 1] - bounds[static_cast<size_t>(parallel.rank)] !=
          shape.caches.front().heads.q_heads)
    throw std::invalid_argument("context parallelism needs a KV cache of latents and at least one head on every rank");
  return parallel;
}

}  // namespace

Program::Program(const KernelTable& table, Team& team, ring::Ring* ring, const ProgramShape& shape,
                 const Program* lender, Counter* counter)
    : table_(table),
      team_(team),
      ring_(ring),
      counter_(counter),
      parallel_(checked(shape, ring)),
      slots_(shape.limits.max_slots, shape.limits.pages_per_slot(), shape.limits.table_pages(),
             shape.limits.vocabulary),
      kv_(shape.caches, shape.limits.table_pages(), shape.kv_dtype, lender == nullptr ? nullptr : &lender->kv_),
      states_(shape.states, shape.limits),
      step_(shape.limits, kv_.kinds(), parallel_, team.size()),
      arena_(static_cast<size_t>(shape.arena_bytes), pages_of(counter)),
      blocking_(blocking_for(table, cache_sizes(), processor())),
      thread_scratch_bytes_(scratch_for(table, shape)),
      thread_scratch_(static_cast<size_t>(thread_scratch_bytes_ * team.size()), pages_of(counter)),
      part_sums_(kPartSums * sizeof(float), pages_of(counter)),
      most_ahead_(std::min<int64_t>(kMostAhead, cache_sizes().l2 / 2)),
      sampled_(static_cast<size_t>(2 * shape.limits.max_logit_rows)) {
  if (ring != nullptr && ring->lanes() > team.size())
    throw std::invalid_argument(
        "the ring has more lanes than a worker has threads; create the ring with at most one lane per thread");
  if (counter != nullptr && !team.takes_turns())
    throw std::invalid_argument("a program with a counter needs a team whose threads take turns: use Team.in_turns");
  if (states_.keep_sequences()) step_.keep_states();
}

void Program::add(std::unique_ptr<Node> node) {
  if (!nodes_.empty()) nodes_.back()->next_node = node.get();
  node->node_number = nodes_.size();
  node->narrow = narrow_;
  node->on_request = on_request_;
  nodes_.push_back(std::move(node));
}

void Program::require_all_tokens() const {
  if (narrow_)
    throw std::invalid_argument(
        "the operation reads an index of all tokens, but works on rows of logits or pooled rows; add it before these");
}

const int32_t* Program::row_indices(RowIndex index) {
  require_all_tokens();
  return step_.indices.read(index);
}

void Program::add_divided(std::unique_ptr<Node> node, const Place& message) {
  node->of_divided = true;
  divided_collectives_.push_back(message.collective);
  add(std::move(node));
}

void Program::set_collectives(int64_t count) {
  numbers_.clear();
  numbers_undivided_.clear();
  const std::vector<int32_t>& divided = divided_collectives_;
  for (int32_t number = 0, left_out = 0; number <= count; ++number) {
    numbers_.push_back(number);
    numbers_undivided_.push_back(number - left_out);
    if (std::find(divided.begin(), divided.end(), number) != divided.end()) ++left_out;
  }
}

void Program::use_masks(const Masks& masks) {
  const masks::Board& board = *masks.board;
  if (int64_t{board.rows()} < slots_.size() || int64_t{board.row_bytes()} * 8 < slots_.vocabulary())
    throw std::invalid_argument(
        "token masks: the shared memory must have a row for each slot and a bit for each token");
  masks_ = masks;
}

void Program::pool_to(const Place& place, int64_t columns) {
  pooled_ = place;
  pooled_columns_ = columns;
}

std::span<const float> Program::pooled(size_t index) const {
  const auto* values = reinterpret_cast<const float*>(arena_.data() + pooled_.offset);
  return {values + static_cast<int64_t>(index) * pooled_.ld, static_cast<size_t>(pooled_columns_)};
}

StepOutcome Program::run(std::span<const SequenceInput> plan, std::span<const int32_t> tokens,
                         std::span<const int32_t> targets, uint64_t step_id, std::span<const PlacedRows> placed,
                         std::optional<StepPart> given) {
  const int64_t begin = now_ns();
  node_ns_.resize(nodes_.size());
  node_wait_ns_.resize(nodes_.size());
  // Steps that are counted do not follow each other: states are taken to be those where each sequence begins.
  if (counter_ != nullptr)
    for (const SequenceInput& s : plan) slots_.at(s.slot).state_position = s.start;
  const StepPart part = part_of_step(given);
  const Step::Totals before = step_.totals;
  step_.begin(plan, tokens, targets, slots_, placed);
  slots_.commit();
  if (part.first > 0) step_.totals = before;
  named_logprobs_.resize(static_cast<size_t>(step_.num_named));
  const std::vector<int32_t>& numbers = step_.divided.rows.empty() ? numbers_undivided_ : numbers_;
  const auto number = [&](int64_t collective) {
    return static_cast<uint64_t>(numbers[static_cast<size_t>(collective)]);
  };
  Run run{.table = table_,
          .team = team_,
          .ring = ring_,
          .step = step_,
          .slots = slots_,
          .states = states_,
          .arena = arena_.data(),
          .thread_scratch = thread_scratch_.data(),
          .thread_scratch_bytes = thread_scratch_bytes_,
          .blocking = blocking_,
          .part_sums = part_sums_.data(),
          .sampled = sampled_,
          .named_logprobs = named_logprobs_,
          .masks = masks_,
          .step_id = step_id,
          .begin_ns = begin,
          .numbers = numbers.data(),
          .counter = counter_,
          .handed_out = std::vector<std::atomic<int64_t>>(counters_)};
  if (ring_ != nullptr) {
    // After an abort, epochs are ahead of the position: a wait could be satisfied by a step that never ended.
    if (ring_->aborted()) ring_->check(ring::Status::aborted);
    run.first_collective = ring_->position() - number(part.first_collective);
    ring_->beat();
    const progress::Waiting waiting(team_.progress(), 0);
    ring_->check(ring_->acquire(0, ring_->position()));
  }
  if (counter_ != nullptr) counter_->begin(team_, ring_);
  team_.parallel([&](int thread) { run_nodes(run, part, thread); });
  if (ring_ != nullptr) {
    ring_->check(run.status);
    ring_->set_position(run.first_collective + number(part.end_collective));
  }
  const int64_t native_ns = now_ns() - begin;
  if (step_.counts()) native_ns_ += native_ns;
  return {.rows = step_.logit_rows,
          .sampled = sampled_.data(),
          .targets = sampled_.data() + step_.logit_rows.size(),
          .named_logprobs = named_logprobs_.data(),
          .native_ns = native_ns,
          .all_reduce_ns = run.all_reduce_ns,
          .mask_wait_ns = run.mask_wait_ns};
}

std::vector<int32_t> Program::nan_sequences() const {
  std::vector<int32_t> found;
  const std::vector<LogitRow>& rows = step_.logit_rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool spoiled = (rows[i].sample && sampled_[i].token >= 0 && !sampled_[i].usable) ||
                         (rows[i].target >= 0 && !sampled_[rows.size() + i].usable);
    if (spoiled && (found.empty() || found.back() != rows[i].sequence)) found.push_back(rows[i].sequence);
  }
  for (size_t i = 0; i < step_.pooled_sequences.size(); ++i) {
    const std::span<const float> values = pooled(i);
    if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
      found.push_back(step_.pooled_sequences[i]);
  }
  return found;
}

std::vector<int32_t> Program::sequences_with(bool SampledRow::* mark) const {
  std::vector<int32_t> found;
  for (size_t i = 0; i < step_.logit_rows.size(); ++i)
    if (step_.logit_rows[i].sample && sampled_[i].*mark) found.push_back(step_.logit_rows[i].sequence);
  return found;
}

StepPart Program::part_of_step(std::optional<StepPart> given) const {
  const auto nodes = static_cast<int64_t>(nodes_.size()), collectives = static_cast<int64_t>(numbers_.size()) - 1;
  if (!given) return {.first = 0, .end = nodes, .first_collective = 0, .end_collective = collectives};
  const StepPart& part = *given;
  if (part.first < 0 || part.first > part.end || part.end > nodes || part.first_collective < 0 ||
      part.first_collective > part.end_collective || part.end_collective > collectives)
    throw std::invalid_argument("the step has a part whose nodes or collectives do not exist");
  return part;
}

void Program::run_nodes(Run& run, const StepPart& part, int thread) {
  int64_t last = thread == 0 ? now_ns() : 0, waited = 0, joined = 0;
  Ahead ahead(run, nodes_, thread, most_ahead_);
  for (auto i = static_cast<size_t>(part.first); i < static_cast<size_t>(part.end); ++i) {
    if (!nodes_[i]->runs(step_) || nodes_[i]->joins_next(run)) continue;
    enter(run, *nodes_[i], thread);
    nodes_[i]->run(run, thread);
    // Set before the barrier, so that all threads stop after the same node. A faster thread may fail in the next node
    // before the others have checked whether this was the last one.
    if (run.failed()) run.last_node.store(i, std::memory_order_relaxed);
    team_.barrier(thread, ahead.until(i + 1));
    if (thread == 0) {
      const int64_t now = now_ns();
      if (step_.counts()) {
        const int64_t of_joined = run.joined_ns - joined;
        node_ns_[i] += now - last - of_joined;
        if (of_joined > 0) node_ns_[i - 1] += of_joined;
        node_wait_ns_[i] += run.all_reduce_ns - waited;
      }
      last = now;
      waited = run.all_reduce_ns;
      joined = run.joined_ns;
    }
    if (run.last_node.load(std::memory_order_relaxed) == i) return;
  }
}

std::vector<NodeTime> Program::profile() const {
  std::vector<NodeTime> times;
  const bool has_run = node_ns_.size() == nodes_.size();
  for (size_t i = 0; i < nodes_.size(); ++i)
    times.push_back({.name = nodes_[i]->name,
                     .ns = has_run ? node_ns_[i] : 0,
                     .wait_ns = has_run ? node_wait_ns_[i] : 0,
                     .weight_bytes = nodes_[i]->bytes,
                     .cost = nodes_[i]->on_request ? Cost{} : nodes_[i]->cost(step_)});
  return times;
}

}  // namespace numaserve
