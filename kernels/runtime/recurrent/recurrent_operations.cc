#include "kernels/runtime/recurrent/recurrent_operations.h"

#include <memory>
#include <string>

#include "kernels/runtime/attention/attention_nodes.h"
#include "kernels/runtime/recurrent/conv_node.h"
#include "kernels/runtime/recurrent/gate_nodes.h"

namespace numaserve::operation {
namespace {

// Makes the node of a rule whose tokens have `gates` gates for each value head.
template <class Rule>
std::unique_ptr<DeltaNode> delta_node(const Program& p, const Rule& f, int64_t gates, DeltaFunction apply) {
  const DeltaHeads& heads = f.heads;
  require(heads.keys >= 0 && heads.values >= 0 && heads.key_dim >= 1 && heads.value_dim >= 1 && heads.gates == gates &&
              (heads.keys == 0 ? heads.values == 0 : heads.values % heads.keys == 0),
          f.kKind, "the value heads must be a multiple of the key heads, and heads must have dimensions and gates");
  require(f.x.ld >= heads.convolved() && f.gates.ld >= gates * heads.values &&
              f.out.ld >= int64_t{heads.values} * heads.value_dim,
          f.kKind, "the input, the gates or the output has too few columns");
  require(f.offset >= 0 && f.offset % kLineBytes == 0 &&
              p.states().kind(f.state).slot_bytes >= f.offset + heads.state_bytes(),
          f.kKind, "the state is too small for the matrices of the heads, or they begin within a cache line");
  require(heads.key_dim <= kMaxKeyDim, f.kKind, "keys must have at most 512 dimensions");
  require(
      p.states().max_drafts() == 0 || p.states().kind(f.state).draft_bytes >=
                                          draft_offset(heads) + heads.replayed() * static_cast<int64_t>(sizeof(float)),
      f.kKind, "the memory of a draft token is too small for its keys, values and gates");
  return std::make_unique<DeltaNode>(f.x, f.gates, f.out, heads, f.state, f.offset, f.kKind, apply);
}

// The same with a decay and a bias of each value head.
template <class Rule>
std::unique_ptr<DeltaNode> decaying_node(const Program& p, const Rule& f, int64_t gates, DeltaFunction apply) {
  require_size(f.decay, f.heads.values, f.kKind);
  require_size(f.decay_bias, f.heads.values, f.kKind);
  auto node = delta_node(p, f, gates, apply);
  node->decay = f.decay->padded.data();
  node->decay_bias = f.decay_bias->padded.data();
  return node;
}

// Adds the node, and one that keeps draft tokens if there may be some.
void add_delta(Program& p, std::unique_ptr<DeltaNode> node) {
  const DeltaNode& rule = *node;
  p.add(std::move(node));
  if (p.states().max_drafts() > 0) p.add(std::make_unique<KeepDraftsNode>(rule));
}

}  // namespace

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
  require(p.states().max_drafts() == 0 ||
              p.states().kind(f.state).draft_bytes >= cols * static_cast<int64_t>(sizeof(float)),
          f.kKind, "the memory of a draft token is too small for the inputs of the convolution");
  auto node = std::make_unique<ConvNode>(f.x, f.out, f.weight->values, f.taps, f.state);
  node->bias = data_or_null(f.bias);
  node->silu = f.activation == Activation::kSilu;
  p.add(std::move(node));
}

void add(Program& p, const GatedDelta& f) { add_delta(p, decaying_node(p, f, 2, &KernelTable::gated_delta)); }

void add(Program& p, const StateSpace& f) {
  require_size(f.skip, f.heads.values, f.kKind);
  require(f.least_step <= f.most_step, f.kKind, "the least step must not be above the most one");
  auto node = decaying_node(p, f, 1, &KernelTable::state_space);
  node->skip = f.skip->padded.data();
  node->least_step = f.least_step;
  node->most_step = f.most_step;
  node->element_flops = 4;
  add_delta(p, std::move(node));
}

void add(Program& p, const KeyDecays& f) {
  const int64_t heads = f.decay->size, cols = f.bias->size;
  require(heads == 0 ? cols == 0 : cols % heads == 0, f.kKind, "each value head must have a bias of each dimension");
  require(f.b.ld >= heads && f.x.ld >= cols && f.out.ld >= heads + cols, f.kKind,
          "an input or the output has too few columns");
  p.add(std::make_unique<KeyDecaysNode>(f.b, f.x, f.out, f.decay->padded.data(), f.bias->padded.data(), heads,
                                        heads == 0 ? 0 : cols / heads));
}

void add(Program& p, const KeyDelta& f) {
  auto node = delta_node(p, f, int64_t{1} + f.heads.key_dim, &KernelTable::key_delta);
  node->element_flops = 7;
  add_delta(p, std::move(node));
}

void add(Program& p, const GatedHeadNorm& f) {
  const int64_t dim = f.weight->size, cols = f.heads * dim;
  require(f.heads >= 0 && f.x.ld >= cols && f.gate.ld >= cols && f.out.ld >= round_up(cols, kPad), f.kKind,
          "the input, the gate or the output has too few columns");
  auto node = std::make_unique<GatedNormNode>(f.x, f.gate, f.out, f.weight->padded.data(), f.heads, dim, f.eps);
  node->silu = f.silu;
  p.add(std::move(node));
}

void add(Program& p, const SigmoidGate& f) {
  require(f.cols >= 0 && f.x.ld >= round_up(f.cols, kPad) && f.gate.ld >= f.cols, f.kKind,
          "the input or the gate has too few columns");
  auto node = std::make_unique<SigmoidGateNode>(f.x, f.gate, f.cols);
  auto* attention = p.last<AttentionNode>();
  if (attention != nullptr && attention->out.offset == f.x.offset) node->attention = attention;
  p.add(std::move(node));
}

}  // namespace numaserve::operation
