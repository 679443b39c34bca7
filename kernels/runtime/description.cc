#include "kernels/runtime/description.h"

#include <span>

#include "kernels/runtime/attention_nodes.h"
#include "kernels/runtime/context_parallel.h"
#include "kernels/runtime/gather_columns.h"
#include "kernels/runtime/latent_nodes.h"
#include "kernels/runtime/moe_nodes.h"
#include "kernels/runtime/weight_file.h"

namespace numaserve {
namespace {

template <class T>
std::vector<int64_t> widened_integers(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

// The type of the activations that a product with `weight` reads.
const char* operand_type(const PackedMatrix& weight, bool widened) {
  return takes_int8(weight.format()) && !widened ? "int8" : "bf16";
}

const char* result_type(Activation activation) { return activation == Activation::kNone ? "fp32" : "bf16"; }

const char* type_of_bytes(int64_t item_bytes) { return item_bytes == 1 ? "int8" : "bf16"; }

}  // namespace

void Description::heads(const HeadGeometry& heads) {
  integers("heads", {heads.q_heads, heads.kv_heads, heads.head_dim, heads.value_dim});
}

void Description::kv(const KvLayer& layer) {
  integers("kv",
           {static_cast<int64_t>(layer.dtype), layer.k - kv_, layer.v - layer.k, layer.page_stride, layer.head_stride});
}

void Description::activation(Activation activation) {
  constexpr const char* kNames[] = {"none", "silu", "gelu_tanh", "swiglu_oai"};
  text("activation", kNames[static_cast<int>(activation)]);
}

void Description::vector(const char* role, const float* values, int64_t count) {
  if (values == nullptr) return;
  const auto bytes = std::as_bytes(std::span(values, static_cast<size_t>(count)));
  vectors.push_back({role, count, checksum(bytes.data(), static_cast<int64_t>(bytes.size()))});
}

void EmbedNode::describe(Description& d) const {
  d.integer("first_row", first_row);
  d.number("scale", scale);
  d.weight("table", table);
  d.writes("out", "fp32", out);
}

void NormNode::describe(Description& d) const {
  d.number("eps", eps);
  d.vector("weight", weight.data(), static_cast<int64_t>(weight.size()));
  d.reads("x", "fp32", x);
  d.writes("out", "bf16", out);
  if (!quantized) return;
  d.integers("quantized", {quantized->cols, quantized->group});
  d.writes("quantized", "int8", quantized->out);
}

void QuantizeNode::describe(Description& d) const {
  d.integers("quantized", {quantized.cols, quantized.group});
  d.integer("rows_per_token", rows_per_token);
  d.integer("logits", logits);
  d.integers("of_heads", {heads, x_stride, out_stride});
  d.reads("x", "bf16", x);
  d.writes("out", "int8", quantized.out);
}

void LinearNode::describe(Description& d) const {
  d.activation(activation);
  d.integer("widened", widened);
  d.integer("logits", logits);
  d.weight("weight", weight);
  d.vector("bias", bias, weight.n());
  d.reads("x", operand_type(weight, widened), x);
  if (accumulate)
    d.updates("out", "fp32", out);
  else
    d.writes("out", result_type(activation), out);
}

void ReduceNode::describe(Description& d) const {
  d.integer("cols", cols);
  if (post_norm != nullptr) d.number("eps", eps);
  d.vector("bias", bias, cols);
  d.vector("post_norm", post_norm, cols);
  d.reads("partial", "fp32", partial);
  if (post_norm != nullptr) d.writes("sum", "fp32", sum);
  if (assign)
    d.writes("residual", "fp32", residual);
  else
    d.updates("residual", "fp32", residual);
}

void RopeStoreNode::describe(Description& d) const {
  d.heads(heads);
  d.kv(kv);
  d.integer("rot_dim", rot_dim);
  if (q_norm != nullptr || k_norm != nullptr) d.number("eps", eps);
  if (norm_rotated) d.integer("norm_rotated", norm_rotated);
  d.vector("cos", cos, positions * rot_dim / 2);
  d.vector("sin", sin, positions * rot_dim / 2);
  d.vector("q_norm", q_norm, heads.head_dim);
  d.vector("k_norm", k_norm, heads.head_dim);
  d.reads("qkv", "fp32", qkv);
  d.writes("q", "bf16", q);
}

void GatherNode::describe(Description& d) const {
  d.reads("x", "bf16", x);
  d.writes("out", "bf16", out);
}

void SampleNode::describe(Description& d) const {
  d.integers("vocab_first", vocab_first);
  d.number("softcap", softcap);
  d.reads("logits", "fp32", logits);
  d.writes("tokens", "int32", tokens);
}

void AttentionNode::describe(Description& d) const {
  d.heads(heads);
  d.kv(kv);
  d.number("scale", scale);
  d.number("softcap", softcap);
  d.integer("window", d.step.attention[static_cast<size_t>(work)].window);
  d.integer("block_groups", block_groups);
  d.vector("sinks", sinks, heads.q_heads);
  d.reads("q", "bf16", q);
  d.writes("partial", "fp32", partial);
  d.writes("out", "bf16", out);
}

void LatentStoreNode::describe(Description& d) const {
  d.heads(heads);
  d.kv(layer);
  d.integer("nope_dim", nope_dim);
  d.number("eps", eps);
  const int64_t half = (heads.head_dim - heads.value_dim) / 2;
  d.vector("cos", cos, positions * half);
  d.vector("sin", sin, positions * half);
  d.vector("norm", norm, heads.value_dim);
  d.reads("q", "fp32", q);
  d.reads("kv", "fp32", kv);
  d.writes("nope", "bf16", nope);
  d.writes("query", "bf16", query);
}

// Each head writes the first of its columns of `out`; the others stay.
void HeadLinearNode::describe(Description& d) const {
  d.integers("strides", {x_stride, out_stride});
  d.integer("num_heads", num_heads);
  d.integer("widened", widened);
  d.weight("weight", weight);
  d.reads("x", operand_type(weight, widened), x);
  if (num_heads > 0 && weight.n() / num_heads < out_stride)
    d.updates("out", "bf16", out);
  else
    d.writes("out", "bf16", out);
}

void RouteNode::describe(Description& d) const {
  d.integers("experts", {choice.num_experts, first_expert, num_experts, choice.top_k});
  d.integers("groups", {choice.num_groups, choice.top_groups});
  d.text("scoring", choice.scoring == Scoring::kSoftmax ? "softmax" : "sigmoid");
  d.text("group_score", choice.group_score == GroupScore::kMax ? "max" : "top2");
  d.integer("renormalize", choice.renormalize);
  d.number("scale", choice.scale);
  d.integer("shared_gate", shared_gate);
  d.vector("correction", choice.correction, choice.num_experts);
  d.reads("logits", "fp32", logits);
  d.reads("x", type_of_bytes(item_bytes), x);
  d.writes("sorted", type_of_bytes(item_bytes), sorted);
  d.writes("routes", "int32", places.routes);
  d.writes("counts", "int32", places.counts);
}

void ExpertsNode::describe(Description& d) const {
  d.activation(activation);
  if (activation == Activation::kSwigluOai) d.number("limit", limit);
  d.integer("widened", widened);
  for (const PackedMatrix* expert : experts) d.weight("expert", *expert);
  if (!experts.empty()) {
    d.vector("bias", bias, static_cast<int64_t>(experts.size()) * experts.front()->padded_n());
    d.reads("x", type_of_bytes(item_bytes), x);
    d.reads("counts", "int32", counts);
    d.writes("out", result_type(activation), out);
  }
  if (shared == nullptr) return;
  d.integer("shared_widened", shared_widened);
  d.weight("shared", *shared);
  d.reads("shared_x", operand_type(*shared, shared_widened), shared_x);
  d.writes("shared_out", result_type(activation), shared_out);
}

void CombineNode::describe(Description& d) const {
  d.integer("top_k", top_k);
  d.reads("y", "fp32", y);
  d.reads("routes", "int32", routes);
  if (has_shared) d.reads("shared", "fp32", shared);
  if (accumulate)
    d.updates("out", "fp32", out);
  else
    d.writes("out", "fp32", out);
}

void GatherColumnsNode::describe(Description& d) const {
  d.integers("bounds", widened_integers(columns.bounds));
  d.reads("message", "fp32", message);
  d.writes("out", "fp32", out);
}

void GatherQueriesNode::describe(Description& d) const {
  d.integers("bounds", widened_integers(heads.bounds));
  d.integer("head_dim", heads.unit);
  d.reads("query", "bf16", query);
  d.writes("message", "bf16", message);
  d.writes("gathered", "bf16", gathered);
}

// Rows of sequences that are not divided stay as they are.
void DividedAttentionNode::describe(Description& d) const {
  d.heads(all_heads);
  d.kv(kv);
  d.number("scale", scale);
  d.integers("bounds", widened_integers(head_bounds));
  d.reads("q", "bf16", q);
  d.writes("partial", "fp32", partial);
  d.writes("message", "fp32", message);
  d.updates("out", "bf16", out);
}

}  // namespace numaserve
