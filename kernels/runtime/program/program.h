// A model's forward pass, its collectives and sampling as one list of nodes, run by one call per step.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/blocking.h"
#include "kernels/runtime/counting/counter.h"
#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// The sizes that a Program is made for.
struct ProgramShape {
  Limits limits;
  std::vector<CacheKind> caches;
  std::vector<StateKind> states;
  KvDtype kv_dtype = KvDtype::kBf16;
  ContextParallel parallel;
  int64_t arena_bytes = 0;
};

// A part of a step: some nodes, and the collectives in which they take part. The next part of the step finds in memory
// what this one leaves there.
struct StepPart {
  int64_t first = 0, end = 0;
  int64_t first_collective = 0, end_collective = 0;
};

struct NodeTime {
  std::string name;
  int64_t ns;       // on thread 0, with the barrier after the node, since the Program was made
  int64_t wait_ns;  // the part of `ns` spent waiting for other ranks
  int64_t weight_bytes;
  Cost cost;
};

struct StepOutcome {
  std::span<const LogitRow> rows;
  const SampledRow* sampled;    // for each row: its sample
  const SampledRow* targets;    // for each row: the log-probability of its target
  const float* named_logprobs;  // of all rows; see `LogitRow::named`
  int64_t native_ns;
  int64_t all_reduce_ns;
  int64_t mask_wait_ns;
};

class Program {
 public:
  // `ring` is null with one rank. Ring and team outlive the Program. Throws std::invalid_argument for heads that
  // attention does not support, such as a latent cache with a quantized dtype. `lender` is null, or the Program whose
  // KV cache this one reads in place of its own; see KvCache. It outlives this Program, and the two never run at once.
  // A `counter` counts the work of each step; the table is then a counting one, and the team takes turns.
  Program(const KernelTable& table, Team& team, ring::Ring* ring, const ProgramShape& shape,
          const Program* lender = nullptr, Counter* counter = nullptr);

  void add(std::unique_ptr<Node> node);
  // Lets the nodes that are added after this work on the rows of logits alone.
  void narrow() {
    narrow_ = true;
    step_.allow_narrowing(kv_.kinds(), team_.size());
  }
  // Lets the nodes that are added after this work on pooled rows alone; none of them may attend.
  void pool() {
    narrow_ = true;
    step_.allow_pooling();
  }
  // Lets the nodes that are added after this work on the rows that tiles become; none of them may attend. See
  // Step::take_tiles.
  void merge(int64_t patches, int64_t merged, int64_t extra, bool many) {
    step_.take_tiles(patches, merged, extra, many);
    narrow_ = true;
  }
  // Lets the nodes that are added after this work on all tokens, and run only in steps that ask for vectors of tokens.
  void give_tokens() {
    narrow_ = false;
    on_request_ = true;
    step_.allow_token_vectors();
  }
  // Throws std::invalid_argument where the nodes to be added work on other rows than all tokens.
  void require_all_tokens() const;
  // Lists an index of all tokens in every step, for a node to be added; see RowIndices. Throws std::invalid_argument
  // where nodes work on other rows.
  const int32_t* row_indices(RowIndex index);
  // Keeps `object`, into which nodes point, alive as long as the Program.
  void keep(std::shared_ptr<const void> object) { kept_.push_back(std::move(object)); }
  // Sets the number of collectives of a step. Call it once, after the last `add`.
  void set_collectives(int64_t count);
  // Adds a node that runs only in steps that divide the latents of a sequence. Other steps do not count its collective.
  void add_divided(std::unique_ptr<Node> node, const Place& message);
  // Returns the counter of the next node to add that hands items out; see `hand_out`.
  size_t next_counter() { return counters_++; }
  // Returns the last added node if it is of that kind, otherwise null.
  template <class Kind>
  Kind* last() const {
    return nodes_.empty() ? nullptr : dynamic_cast<Kind*>(nodes_.back().get());
  }
  // Sets where the results of pooled sequences are after a step, with `columns` of each.
  void pool_to(const Place& place, int64_t columns);
  // Sets the mask board, which outlives the Program. Throws std::invalid_argument for a board with too few rows or
  // bits.
  void use_masks(const Masks& masks);

  // The blocking of products; computed from the caches until it is set. It changes no bit of a result. Setting it
  // throws std::invalid_argument for a blocking that there is no space for.
  const Blocking& blocking() const { return blocking_; }
  void set_blocking(const Blocking& blocking) { blocking_ = checked(blocking); }

  // Runs every node on a batch and commits the pending changes of slots. Waits for the masks of step `step_id`. Throws
  // std::invalid_argument for an invalid plan; nothing has changed then, and the changes of slots can be reverted.
  // Throws ring::Aborted or ring::DeadlineExceeded when a peer is gone. The result is valid until the next step. With a
  // `part` only this part of the step runs; totals count the step with its first node.
  StepOutcome run(std::span<const SequenceInput> plan, std::span<const int32_t> tokens,
                  std::span<const int32_t> targets, uint64_t step_id = 0, std::span<const PlacedRows> placed = {},
                  std::optional<StepPart> part = {});

  // Indices in the plan of the last step's sequences with invalid logits (NaN, or no finite maximum) or a pooling
  // result that is not finite. Only rank 0 knows the sequences with invalid logits.
  std::vector<int32_t> nan_sequences() const;
  // Sequences that are to be dropped, or whose mask allows no token.
  std::vector<int32_t> dropped_sequences() const { return sequences_with(&SampledRow::dropped); }
  // Sequences whose mask was late.
  std::vector<int32_t> late_sequences() const { return sequences_with(&SampledRow::late); }

  // The pooling result of the last step's `index`-th pooled sequence, valid until the next step.
  std::span<const float> pooled(size_t index) const;

  SlotTable& slots() { return slots_; }
  Step& step() { return step_; }
  const Step& step() const { return step_; }
  const KvCache& kv() const { return kv_; }
  const States& states() const { return states_; }
  const ContextParallel& context_parallel() const { return parallel_; }
  int world() const { return ring_ == nullptr ? 1 : ring_->world(); }
  const KernelTable& table() const { return table_; }
  const LargeBuffer& arena() const { return arena_; }
  std::vector<NodeTime> profile() const;
  int64_t native_ns() const { return native_ns_; }  // of all steps so far

 private:
  std::vector<int32_t> sequences_with(bool SampledRow::* mark) const;
  // The whole step, or `given`. Throws std::invalid_argument for nodes or collectives that do not exist.
  StepPart part_of_step(std::optional<StepPart> given) const;
  void run_nodes(Run& run, const StepPart& part, int thread);

  std::vector<std::shared_ptr<const void>> kept_;
  const KernelTable& table_;
  Team& team_;
  ring::Ring* ring_;
  Counter* counter_;
  ContextParallel parallel_;
  SlotTable slots_;
  KvCache kv_;
  States states_;
  Step step_;
  LargeBuffer arena_;
  Blocking blocking_;
  int64_t thread_scratch_bytes_;
  LargeBuffer thread_scratch_, part_sums_;
  int64_t most_ahead_;
  std::vector<SampledRow> sampled_;
  std::vector<float> named_logprobs_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<int64_t> node_ns_, node_wait_ns_;
  int64_t native_ns_ = 0;
  size_t counters_ = 0;
  bool narrow_ = false, on_request_ = false;
  std::vector<int32_t> divided_collectives_;
  // The number of each collective, and last how many there are: in steps that divide a sequence, and in others.
  std::vector<int32_t> numbers_{0}, numbers_undivided_{0};
  Masks masks_;
  Place pooled_{.offset = 0, .ld = 0, .collective = -1};
  int64_t pooled_columns_ = 0;
};

}  // namespace numaserve
