// RMS norms of vectors that ranks divide, such as all heads of a token's queries.
#pragma once

#include <vector>

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// One collective for all vectors: a rank's part has a sum of squares for each token and vector. Ranks add the sums of
// all ranks in rank order, so that every rank has the same scales to the last bit. A lane sums and scales the same
// rows, and meets only the same lane of the other ranks. With one rank nothing is exchanged.
struct DividedNormNode : Node {
  DividedNormNode(Place x_in, Place message_in, std::vector<DividedVector> vectors_in, float eps_in)
      : Node("divided_norm"), x(x_in), message(message_in), vectors(std::move(vectors_in)), eps(eps_in) {}
  void run(Run& run, int thread) const override;
  Place x;        // [tokens, the rank's columns of all vectors, and others after these]
  Place message;  // [tokens, vectors], in the ring
  std::vector<DividedVector> vectors;
  float eps;
};

}  // namespace numaserve
