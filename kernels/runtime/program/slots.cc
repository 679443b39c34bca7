#include "kernels/runtime/program/slots.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/runtime/attention/attention_plan.h"

namespace numaserve {
namespace {

void check_ids(const std::vector<int32_t>& ids, int64_t vocabulary) {
  for (const int32_t id : ids)
    if (id < 0 || id >= vocabulary)
      throw std::invalid_argument("token id " + std::to_string(id) + " is not in the vocabulary");
}

std::vector<int32_t> counts(const std::vector<int32_t>& history, int64_t vocabulary) {
  std::vector<int32_t> result(static_cast<size_t>(vocabulary), 0);
  for (const int32_t id : history) ++result[static_cast<size_t>(id)];
  return result;
}

}  // namespace

SlotTable::SlotTable(int64_t slots, int64_t pages_per_slot, std::vector<int64_t> table_pages, int64_t vocabulary)
    : pages_per_slot_(pages_per_slot),
      vocabulary_(vocabulary),
      table_pages_(std::move(table_pages)),
      slots_(static_cast<size_t>(slots)) {
  for (Slot& slot : slots_) slot.tables = empty_tables();
}

std::vector<PageTable> SlotTable::empty_tables() const {
  std::vector<PageTable> tables(table_pages_.size());
  for (PageTable& table : tables) table.pages.reserve(static_cast<size_t>(pages_per_slot_));
  return tables;
}

Slot& SlotTable::at(int64_t slot) {
  if (slot < 0 || slot >= static_cast<int64_t>(slots_.size()))
    throw std::invalid_argument("slot " + std::to_string(slot) + " is out of range");
  return slots_[static_cast<size_t>(slot)];
}

void SlotTable::init(int64_t index, SlotSettings s) {
  Slot& slot = at(index);
  check_ids(s.bias_ids, vocabulary_);
  check_ids(s.suppress, vocabulary_);
  check_ids(s.token_ids_logprob, vocabulary_);
  check_ids(s.prompt_history, vocabulary_);
  check_ids(s.output_history, vocabulary_);
  if (s.bias_ids.size() != s.bias_values.size())
    throw std::invalid_argument("the logit bias must have one value per id");
  check_grids(s.declared.grids);
  // Moving the slot does not move its vectors, so pointers to them stay valid.
  changes_.push_back({.slot = index, .table = 0, .num_pages = 0, .first = 0, .before = std::move(slot)});
  slot = {};
  slot.tables = empty_tables();
  slot.bias_ids = std::move(s.bias_ids);
  slot.bias_values = std::move(s.bias_values);
  slot.suppress_ids = std::move(s.suppress);
  slot.named_ids = std::move(s.token_ids_logprob);
  slot.masked = s.masked;
  slot.declared = s.declared;
  slot.prompt_counts = s.penalties ? counts(s.prompt_history, vocabulary_) : std::vector<int32_t>{};
  slot.output_counts = s.penalties ? counts(s.output_history, vocabulary_) : std::vector<int32_t>{};
  slot.sampling = SamplingState{
      .temperature = s.temperature,
      .top_p = s.top_p,
      .min_p = s.min_p,
      .top_k = s.top_k,
      .repetition_penalty = s.repetition_penalty,
      .presence_penalty = s.presence_penalty,
      .frequency_penalty = s.frequency_penalty,
      .seed = s.seed,
      .bias_ids = slot.bias_ids.data(),
      .bias_values = slot.bias_values.data(),
      .num_bias = static_cast<int32_t>(slot.bias_ids.size()),
      .suppress_ids = slot.suppress_ids.data(),
      .num_suppress = static_cast<int32_t>(slot.suppress_ids.size()),
      .min_position = s.min_position,
      .num_logprobs = s.num_logprobs,
      .prompt_counts = s.penalties ? slot.prompt_counts.data() : nullptr,
      .output_counts = s.penalties ? slot.output_counts.data() : nullptr,
      .named_ids = slot.named_ids.data(),
      .num_named = static_cast<int32_t>(slot.named_ids.size()),
  };
}

void SlotTable::advance_window(int64_t index, int64_t window, int64_t first, std::span<const int32_t> pages) {
  if (window < 0 || window >= static_cast<int64_t>(table_pages_.size()) - 1)
    throw std::invalid_argument("window table " + std::to_string(window) + " is out of range");
  const auto table = static_cast<size_t>(window) + 1;
  const int64_t before = at(index).tables[table].first;
  if (first < before || first > pages_per_slot_ || first % kBlockPages != 0)
    throw std::invalid_argument("the first " + std::to_string(first) + " pages of window table " +
                                std::to_string(window) + " of slot " + std::to_string(index) +
                                " must be whole blocks, and no fewer than before");
  grow(index, table, first, pages);
}

void SlotTable::grow(int64_t index, size_t table, int64_t first, std::span<const int32_t> pages) {
  PageTable& grown = at(index).tables[table];
  const size_t size = grown.pages.size(), absent = size == 0 ? static_cast<size_t>(first) : 0;
  const auto length = static_cast<int64_t>(size + absent + pages.size());
  if (length > pages_per_slot_)
    throw std::invalid_argument("the page table of slot " + std::to_string(index) + " is full");
  if (length < first)
    throw std::invalid_argument("the page table of slot " + std::to_string(index) + " ends before its first page");
  for (const int32_t page : pages)
    if (page < 0 || page >= table_pages_[table])
      throw std::invalid_argument("page " + std::to_string(page) + " is out of range");
  changes_.push_back({.slot = index, .table = table, .num_pages = size, .first = grown.first, .before = std::nullopt});
  grown.pages.insert(grown.pages.end(), absent, -1);
  grown.pages.insert(grown.pages.end(), pages.begin(), pages.end());
  grown.first = first;
}

void SlotTable::revert() {
  for (; !changes_.empty(); changes_.pop_back()) {
    Change& change = changes_.back();
    Slot& slot = at(change.slot);
    if (change.before) {
      slot = std::move(*change.before);
    } else {
      PageTable& table = slot.tables[change.table];
      table.pages.resize(change.num_pages);
      table.first = change.first;
    }
  }
}

}  // namespace numaserve
