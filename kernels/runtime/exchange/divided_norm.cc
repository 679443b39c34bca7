#include "kernels/runtime/exchange/divided_norm.h"

namespace numaserve {

void DividedNormNode::run(Run& run, int thread) const {
  const Parts sums = run.parts(message);
  const DividedNormArgs args{.x = run.at<float>(x),
                             .ldx = x.ld,
                             .rows = rows(run),
                             .vectors = vectors.data(),
                             .num_vectors = static_cast<int64_t>(vectors.size()),
                             .own_sums = run.at<float>(message),
                             .sums = sums.data(),
                             .num_parts = run.world(),
                             .ld_sums = message.ld,
                             .eps = eps};
  if (thread < run.lanes()) run.table.divided_norm_sums(args, thread, run.lanes());
  if (meet(run, message, thread)) run.table.divided_norm_scale(args, thread, run.lanes());
  leave(run, message, thread);
}

}  // namespace numaserve
