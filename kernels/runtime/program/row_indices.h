// The indices of a step's rows in tables that nodes read: embeddings of tokens, positions, and types of text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace numaserve {

// The declarations of a sequence from which indices of its rows follow: the fields of SlotInit in
// workers/interface/protocol/steps.py after the histories. `visit` lists them.
struct RowDeclarations {
  int32_t second_text = 0;  // position of the first token of its second text; 0: it has none
  int32_t adapter = 0;      // number of its low-rank adapter; 0: it has none
  // Three numbers for each of its images, ascending: the position of the first row of features, and the rows and
  // columns of the grid of these. They have places in a plane of rotary coordinates.
  std::vector<int32_t> grids{};
  void visit(auto&& field) { field("second_text", second_text), field("adapter", adapter), field("grids", grids); }
};

// Throws std::invalid_argument unless grids are whole, ascending and apart from each other.
void check_grids(std::span<const int32_t> grids);

// The new rows of a sequence in a step.
struct NewRows {
  std::span<const int32_t> tokens;
  int32_t start;  // the position of the first row
  const RowDeclarations& declared;
};

// A kind of index: a function that writes the index of each row.
using RowIndex = void (*)(const NewRows& rows, int32_t* out);

// Returns the index of a name, such as "token". Throws std::invalid_argument for another name.
RowIndex row_index_of(std::string_view name);

// A list for each index that nodes read, with a number for each row of a step. A step allocates no memory.
class RowIndices {
 public:
  explicit RowIndices(int64_t max_rows);
  RowIndices(const RowIndices&) = delete;
  RowIndices& operator=(const RowIndices&) = delete;

  // Lists an index from the next step on. The returned list stays at its place.
  const int32_t* read(RowIndex index);

  void clear() { count_ = 0; }
  void add(const NewRows& rows) {
    for (List& list : lists_) list.index(rows, list.values.data() + count_);
    count_ += rows.tokens.size();
  }
  std::span<const int32_t> tokens() const { return {tokens_, count_}; }

 private:
  struct List {
    RowIndex index;
    std::vector<int32_t> values;
  };
  size_t max_rows_, count_ = 0;
  std::vector<List> lists_;
  const int32_t* tokens_;
};

}  // namespace numaserve
