// The state of each sequence that a worker keeps between steps: page table, sampling parameters, last sampled token.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/include/kernel_table.h"
#include "kernels/runtime/program/row_indices.h"

namespace numaserve {

// A page table of a sequence. No token reads the first pages any more, whole blocks of them; the table may begin with
// pages that are absent, -1.
struct PageTable {
  std::vector<int32_t> pages;  // capacity is reserved when the slot starts: no step allocates
  int64_t first = 0;
};

struct Slot {
  std::vector<PageTable> tables;
  SamplingState sampling{};  // its pointers refer to the vectors below
  std::vector<int32_t> bias_ids, suppress_ids;
  std::vector<float> bias_values;
  std::vector<int32_t> prompt_counts, output_counts;  // [vocabulary], empty without penalties
  std::vector<int32_t> named_ids;
  bool masked = false;
  RowDeclarations declared;
  int32_t last_token = -1;
  // The number of tokens after which its states are, and of draft tokens of its last step, which follow these.
  int32_t state_position = 0, state_drafts = 0;
};

// The sampling settings of a sequence; see SamplingParams and SlotInit in workers/interface/protocol. `visit` lists the
// fields.
struct SlotSettings {
  float temperature, top_p, min_p;
  int32_t top_k;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint64_t seed;
  int32_t num_logprobs, min_position;
  std::vector<int32_t> bias_ids;
  std::vector<float> bias_values;
  std::vector<int32_t> suppress;
  bool masked;  // each sample waits for its mask
  std::vector<int32_t> token_ids_logprob;
  bool penalties;
  std::vector<int32_t> prompt_history, output_history;
  RowDeclarations declared;
  void visit(auto&& field) {
    field("temperature", temperature), field("top_k", top_k), field("top_p", top_p), field("min_p", min_p);
    field("repetition_penalty", repetition_penalty), field("presence_penalty", presence_penalty);
    field("frequency_penalty", frequency_penalty), field("seed", seed), field("bias_ids", bias_ids);
    field("bias_values", bias_values), field("num_logprobs", num_logprobs), field("min_position", min_position);
    field("suppress", suppress), field("masked", masked), field("token_ids_logprob", token_ids_logprob);
    field("penalties", penalties), field("prompt_history", prompt_history), field("output_history", output_history);
    declared.visit(field);
  }
};

// The slots. Changes can be reverted until a step has accepted them: a refused plan must leave no change, and only the
// whole plan shows whether it is valid.
//
// A slot has the page table of all layers that use each page of a sequence, and one for each window whose pages are
// given back once no token sees them. Each table has page ids of its own.
class SlotTable {
 public:
  // `table_pages`: the pages of each page table.
  SlotTable(int64_t slots, int64_t pages_per_slot, std::vector<int64_t> table_pages, int64_t vocabulary);

  // Clears the slot and starts a sequence. Throws std::invalid_argument for a slot or token id out of range.
  void init(int64_t slot, SlotSettings settings);
  // Throws std::invalid_argument for a page out of range or a full page table.
  void append_pages(int64_t slot, std::span<const int32_t> pages) { grow(slot, 0, 0, pages); }
  // Appends pages to a window table, of which no token reads the `first` pages any more. An empty table begins with as
  // many pages that are absent. Throws std::invalid_argument for a window table, a page or a `first` out of range.
  void advance_window(int64_t slot, int64_t window, int64_t first, std::span<const int32_t> pages);
  // Makes the changes since the last `commit` final.
  void commit() { changes_.clear(); }
  // Reverts the changes since the last `commit`.
  void revert();
  // Throws std::invalid_argument for a slot out of range.
  Slot& at(int64_t slot);
  int64_t vocabulary() const { return vocabulary_; }
  int64_t size() const { return static_cast<int64_t>(slots_.size()); }

 private:
  struct Change {
    int64_t slot;
    size_t table, num_pages;     // of the table, before
    int64_t first;               // of the table, before
    std::optional<Slot> before;  // the whole slot, if `init` replaced it
  };
  void grow(int64_t slot, size_t table, int64_t first, std::span<const int32_t> pages);
  std::vector<PageTable> empty_tables() const;

  int64_t pages_per_slot_, vocabulary_;
  std::vector<int64_t> table_pages_;
  std::vector<Slot> slots_;
  std::vector<Change> changes_;
};

}  // namespace numaserve
