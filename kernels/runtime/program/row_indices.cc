#include "kernels/runtime/program/row_indices.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace numaserve {
namespace {

void write_tokens(const NewRows& rows, int32_t* out) { std::copy(rows.tokens.begin(), rows.tokens.end(), out); }

void write_positions(const NewRows& rows, int32_t* out) { std::iota(out, out + rows.tokens.size(), rows.start); }

void write_types(const NewRows& rows, int32_t* out) {
  const int32_t second = rows.declared.second_text;
  const int32_t first = second > 0 ? second : std::numeric_limits<int32_t>::max();
  for (size_t i = 0; i < rows.tokens.size(); ++i) out[i] = rows.start + static_cast<int32_t>(i) >= first ? 1 : 0;
}

struct Named {
  std::string_view name;
  RowIndex index;
};

// Every index that an operation may name. `RowIndex` of workers/program/slots.py has the same names.
constexpr Named kIndices[] = {{"token", write_tokens}, {"position", write_positions}, {"type", write_types}};

}  // namespace

RowIndex row_index_of(std::string_view name) {
  const auto* found = std::ranges::find(kIndices, name, &Named::name);
  if (found == std::end(kIndices)) throw std::invalid_argument("unknown index of rows " + std::string(name));
  return found->index;
}

RowIndices::RowIndices(int64_t max_rows)
    : max_rows_(static_cast<size_t>(max_rows)), tokens_(read(row_index_of("token"))) {}

const int32_t* RowIndices::read(RowIndex index) {
  auto found = std::ranges::find(lists_, index, &List::index);
  if (found == lists_.end()) found = lists_.insert(found, {index, std::vector<int32_t>(max_rows_)});
  return found->values.data();
}

}  // namespace numaserve
