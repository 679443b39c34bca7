#include "kernels/runtime/recurrent/recurrent_operations.h"

#include <memory>
#include <string>

#include "kernels/runtime/recurrent/conv_node.h"

namespace numaserve::operation {

void add(Program& p, const CausalConv& f) {
  require(f.taps >= 2 && f.taps <= kMaxConvTaps && f.weight->size % f.taps == 0, f.kKind,
          "a convolution must have from 2 to 8 taps, each with a weight for every column");
  require(f.activation == Activation::kNone || f.activation == Activation::kSilu, f.kKind,
          "the activation of a convolution must be none or silu");
  const int64_t cols = f.weight->size / f.taps;
  require(f.x.ld >= cols && f.out.ld >= cols && f.out.ld % kPad == 0, f.kKind,
          "the input or the output has too few columns for the weight");
  require_size(f.bias, cols, f.kKind);
  require(p.states().kind(f.state).slot_bytes >= (f.taps - 1) * cols * static_cast<int64_t>(sizeof(float)), f.kKind,
          "the state is too small for the inputs that the convolution looks back at");
  auto node = std::make_unique<ConvNode>(f.x, f.out, f.weight->values, f.taps, f.state);
  node->bias = data_or_null(f.bias);
  node->silu = f.activation == Activation::kSilu;
  p.add(std::move(node));
}

}  // namespace numaserve::operation
