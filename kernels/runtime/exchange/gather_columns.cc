#include "kernels/runtime/exchange/gather_columns.h"

namespace numaserve {

void copy_columns(const Run& run, const RankColumns& columns, const Place& message, int64_t rows, const Place& out,
                  int thread) {
  const Range pieces = split(rows * run.world(), run.lanes(), thread);
  for (int64_t i = pieces.begin; i < pieces.end; ++i) {
    const int64_t row = i / run.world();
    const auto rank = static_cast<int>(i % run.world());
    const int64_t bytes = columns.row_bytes(rank);
    run.table.copy(run.part<std::byte>(message, rank) + row * bytes,
                   run.at<std::byte>(out) + row * out.ld * columns.item_bytes + columns.first_byte(rank), bytes);
  }
}

void GatherColumnsNode::run(Run& run, int thread) const {
  if (meet(run, message, thread)) copy_columns(run, columns, message, rows(run), out, thread);
  leave(run, message, thread);
}

}  // namespace numaserve
