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

// A coordinate of each row. Those of a text token are equal. An image is at the coordinate `at` of its first row: rows
// of its features are at (at, at + row, at + column), and the coordinate after it is `at` plus the longer side.
template <int kAxis>
void write_coordinate(const NewRows& rows, int32_t* out) {
  const std::vector<int32_t>& grids = rows.declared.grids;
  const auto count = static_cast<int32_t>(rows.tokens.size());
  int32_t behind = 0, done = 0;  // positions that have no coordinate of their own; rows that are written
  const auto write_text = [&](int32_t end) {
    for (; done < std::min(end, count); ++done) out[done] = rows.start + done - behind;
  };
  for (size_t i = 0; i + 2 < grids.size() && done < count; i += 3) {
    const int32_t first = grids[i], height = grids[i + 1], width = grids[i + 2], size = height * width;
    const int32_t at = first - behind;
    write_text(first - rows.start);
    for (; done < std::min(first + size - rows.start, count); ++done) {
      const int32_t place = rows.start + done - first;
      out[done] = at + (kAxis == 1 ? place / width : kAxis == 2 ? place % width : 0);
    }
    behind += size - std::max(height, width);
  }
  write_text(count);
}

struct Named {
  std::string_view name;
  RowIndex index;
};

// Every index that an operation may name. `RowIndex` of workers/program/slots.py has the same names.
constexpr Named kIndices[] = {{"token", write_tokens},         {"position", write_positions},
                              {"type", write_types},           {"time", write_coordinate<0>},
                              {"height", write_coordinate<1>}, {"width", write_coordinate<2>}};

}  // namespace

void check_grids(std::span<const int32_t> grids) {
  if (grids.size() % 3 != 0) throw std::invalid_argument("the grid of an image must have three numbers");
  int64_t end = 0;
  for (size_t i = 0; i < grids.size(); i += 3) {
    if (grids[i] < end || grids[i + 1] < 1 || grids[i + 2] < 1)
      throw std::invalid_argument("the grids of images must be ascending, apart from each other, and not empty");
    end = grids[i] + int64_t{grids[i + 1]} * grids[i + 2];
  }
}

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
