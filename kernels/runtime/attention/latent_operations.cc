#include "kernels/runtime/attention/latent_operations.h"

#include <memory>

#include "kernels/runtime/attention/context_parallel.h"
#include "kernels/runtime/attention/latent_nodes.h"

namespace numaserve::operation {
namespace {

const std::vector<int32_t>& head_bounds(const Program& p, const char* kind) {
  require(p.context_parallel().world > 1, kind,
          "the operation needs context parallelism, but context parallelism is off");
  return p.context_parallel().head_bounds;
}

}  // namespace

void add(Program& p, const LatentStore& f) {
  const HeadGeometry& heads = p.kv().heads(f.cache);
  require(heads.latent, f.kKind, "the operation needs a KV cache of latents");
  require(f.nope_dim > 0 && f.nope_dim % kPad == 0 && 2 * f.rope->half == heads.head_dim - heads.value_dim &&
              f.rope->distance == f.rope->half,
          f.kKind, "the head size does not match the KV cache of latents");
  require(f.q.ld >= heads.q_heads * (f.nope_dim + 2 * f.rope->half) && f.kv.ld >= heads.head_dim &&
              f.nope.ld >= heads.q_heads * f.nope_dim && f.query.ld == heads.q_heads * heads.head_dim,
          f.kKind, "the number of columns does not match the number and size of the heads");
  require_size(f.norm, heads.value_dim, f.kKind);
  auto node = std::make_unique<LatentStoreNode>(f.q, f.kv, f.nope, f.query, heads, p.kv().layer(f.cache));
  p.step().limit_positions(f.rope->positions);
  node->nope_dim = f.nope_dim;
  node->cos = f.rope->cos.data();
  node->sin = f.rope->sin.data();
  node->q_scale = f.rope->query_scale();
  node->positions = f.rope->positions;
  node->norm = f.norm->padded.data();
  node->eps = f.eps;
  p.add(std::move(node));
}

void add(Program& p, const HeadLinear& f) {
  const PackedMatrix& weight = *f.weight;
  require(!f.widened || is_grouped(weight.format()), f.name,
          "only weights that are quantized in groups can be expanded to bf16");
  require(f.num_heads >= 0 && weight.n() % (f.num_heads > 0 ? f.num_heads * kPad : 1) == 0 &&
              (f.num_heads > 0 || weight.n() == 0),
          f.name, "each head must have a multiple of 32 weight rows");
  const int64_t columns = f.num_heads > 0 ? weight.n() / f.num_heads : 0;
  require(f.num_heads == 0 || (f.x_stride % kPad == 0 && f.x_stride >= operand_columns(weight, f.widened) &&
                               f.x.ld >= f.num_heads * f.x_stride),
          f.name, "the input has too few columns for the weight");
  require(f.out_stride >= columns && f.out.ld >= f.num_heads * f.out_stride, f.name,
          "the output has too few columns for the weight");
  auto node = std::make_unique<HeadLinearNode>(f.name, f.x, f.x_stride, weight, f.num_heads, f.out, f.out_stride);
  node->widened = f.widened;
  p.add(std::move(node));
}

void add(Program& p, const QuantizeHeads& f) {
  const auto& [to, cols, group] = f.out;
  require(f.num_heads >= 0 && cols >= 0 && group >= 0, f.kKind,
          "the number of heads, the columns and the group size must not be negative");
  require(f.x_stride >= round_up(cols, kPad) && f.x.ld >= f.num_heads * f.x_stride, f.kKind,
          "the input has too few columns for the heads");
  require(f.out_stride >= quantized_bytes(cols, group) && to.ld >= f.num_heads * f.out_stride, f.kKind,
          "the output has too few columns for the heads");
  auto node = std::make_unique<QuantizeNode>(f.x, f.out, 1, false);
  node->heads = f.num_heads;
  node->x_stride = f.x_stride;
  node->out_stride = f.out_stride;
  p.add(std::move(node));
}

void add(Program& p, const GatherQueries& f) {
  const std::vector<int32_t>& bounds = head_bounds(p, f.kKind);
  const HeadGeometry& heads = p.kv().heads({});  // of the only kind: others are not divided
  const int32_t dim = heads.head_dim;
  require(f.query.ld == heads.q_heads * dim && f.gathered.ld >= bounds.back() * dim, f.kKind,
          "the number of columns does not match the number and size of the heads");
  p.add_divided(std::make_unique<GatherQueriesNode>(f.query, f.message, f.gathered, dim, bounds), f.message);
}

void add(Program& p, const DividedAttention& f) {
  const std::vector<int32_t>& bounds = head_bounds(p, f.kKind);
  const HeadGeometry& heads = p.kv().heads(f.cache);
  const HeadGeometry all = p.context_parallel().all_heads(heads);
  require(f.q.ld == all.q_heads * all.head_dim && f.out.ld >= heads.q_heads * all.value_dim &&
              f.partial.ld >= all.value_dim + kPartialExtra,
          f.kKind, "the number of columns does not match the number and size of the heads");
  require(f.scale > 0.0f, f.kKind, "the attention scale must be above 0");
  auto node = std::make_unique<DividedAttentionNode>(f.q, f.message, f.out, f.partial, all, p.kv().layer(f.cache),
                                                     bounds, p.next_counter());
  node->scale = f.scale;
  p.add_divided(std::move(node), f.message);
}

}  // namespace numaserve::operation
