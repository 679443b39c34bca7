#include "kernels/runtime/program/operations.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "kernels/runtime/attention/attention_nodes.h"
#include "kernels/runtime/attention/latent_nodes.h"
#include "kernels/runtime/exchange/divided_norm.h"
#include "kernels/runtime/exchange/gather_columns.h"
#include "kernels/runtime/exchange/reduce_node.h"
#include "kernels/runtime/program/stream_nodes.h"
#include "kernels/runtime/recurrent/gate_nodes.h"

namespace numaserve {

Activation activation_of(std::string_view name) {
  return name == "silu"              ? Activation::kSilu
         : name == "gelu_tanh"       ? Activation::kGeluTanh
         : name == "swiglu_oai"      ? Activation::kSwigluOai
         : name == "relu2"           ? Activation::kRelu2
         : name == "gelu"            ? Activation::kGelu
         : name == "plain_gelu_tanh" ? Activation::kPlainGeluTanh
         : name == "geglu"           ? Activation::kGeglu
         : name == "tanh"            ? Activation::kTanh
         : name == "relu"            ? Activation::kRelu
         : name == "none"            ? Activation::kNone
                                     : throw std::invalid_argument("unknown activation " + std::string(name));
}

HeadNorm head_norm_of(std::string_view name) {
  return name == "none"     ? HeadNorm::kNone
         : name == "before" ? HeadNorm::kBefore
         : name == "after"  ? HeadNorm::kAfter
                            : throw std::invalid_argument("unknown order of norm and rotation " + std::string(name));
}

KvSource kv_source_of(std::string_view name) {
  return name == "projected" ? KvSource::kProjected
         : name == "keys"    ? KvSource::kKeys
         : name == "cached"  ? KvSource::kCached
                             : throw std::invalid_argument("unknown source of keys and values " + std::string(name));
}

Pooling pooling_of(std::string_view name) {
  return name == "last"   ? Pooling::kLast
         : name == "cls"  ? Pooling::kFirst
         : name == "mean" ? Pooling::kMean
         : name == "max"  ? Pooling::kMax
                          : throw std::invalid_argument("unknown pooling " + std::string(name));
}

namespace operation {
namespace {

int64_t projected_columns(const HeadGeometry& heads, KvSource source) {
  const int64_t keys = source == KvSource::kCached ? 0 : int64_t{heads.kv_heads} * heads.head_dim;
  const int64_t values = source == KvSource::kProjected ? int64_t{heads.kv_heads} * heads.values() : 0;
  return int64_t{heads.q_heads} * heads.head_dim + keys + values;
}

float scale_or_one(const std::optional<const PaddedVector*>& scale, const std::string& node) {
  require_size(scale, 1, node);
  return scale ? (*scale)->padded[0] : 1.0f;
}

void require_quantized(const std::string& node, const Place& x, const Quantized& to) {
  require(to.cols >= 0 && to.group >= 0 && x.ld >= round_up(to.cols, kPad), node, "the input has too few columns");
  require(to.out.ld >= quantized_bytes(to.cols, to.group), node, "the output has too few columns");
}

// Joins a product with the operation that makes its rows.
void join(LinearNode& product, RowsNode* before) {
  require(before != nullptr && !product.logits, product.name,
          "a matrix product can be fused only with a norm or a quantization directly before it");
  const Place& made = before->made();
  require(made.offset == product.x.offset && made.ld == product.x.ld, product.name,
          "the operation directly before the matrix product does not write the input of the product");
  before->has_product = true;
  product.before = before;
}
// Lets a product read what the node before it makes, at `made`, in the order of tiles.
template <class Maker>
void share_order(LinearNode& product, Maker& maker, const Place& made) {
  const bool in_tiles = product.x.ld * (takes_int8(product.weight.format()) ? 1 : 2) % kLineBytes == 0;
  require(made.offset == product.x.offset && made.ld == product.x.ld && in_tiles, product.name,
          "the operation directly before the matrix product does not write the input of the product");
  maker.read_alone = product.reads_alone = true;
}
void read_alone_in_bf16(LinearNode& product, const Program& p) {
  auto* linear = p.last<LinearNode>();
  if (linear != nullptr && linear->activation != Activation::kNone && !linear->logits)
    return share_order(product, *linear, linear->out);
  auto* attention = p.last<AttentionNode>();
  if (attention != nullptr) return share_order(product, *attention, attention->out);
  auto* gate = p.last<SigmoidGateNode>();
  if (gate != nullptr && gate->attention != nullptr) {
    share_order(product, *gate->attention, gate->attention->out);
    return share_order(product, *gate, gate->x);
  }
  auto* gated = p.last<GatedNormNode>();
  if (gated != nullptr && gated->dim % kTileN == 0) return share_order(product, *gated, gated->out);
  auto* heads = p.last<HeadLinearNode>();
  if (heads != nullptr && heads->out_stride % kTileK == 0) return share_order(product, *heads, heads->out);
  auto* norm = p.last<NormNode>();
  require(norm != nullptr && !norm->quantized && !norm->beside, product.name,
          "a matrix product reads alone only whole rows of bf16 that a norm, a gate, a product or attention directly "
          "before it writes");
  share_order(product, *norm, norm->out);
}
void read_alone_in_int8(LinearNode& product, const Program& p) {
  auto* quantize = p.last<QuantizeNode>();
  if (quantize != nullptr && quantize->rows_per_token == 1 && quantize->heads == 1 && !quantize->logits &&
      quantize->quantized.group == 0)
    return share_order(product, *quantize, quantize->quantized.out);
  auto* norm = p.last<NormNode>();
  require(
      norm != nullptr && norm->quantized && norm->quantized->group == 0, product.name,
      "the operation directly before a matrix product in int8 that reads its result alone must quantize whole rows");
  share_order(product, *norm, norm->quantized->out);
}
void read_alone(LinearNode& product, const Program& p) {
  const WeightFormat format = product.weight.format();
  require((format == WeightFormat::kBf16 || format == WeightFormat::kInt8) && !product.logits, product.name,
          "only matrix products of all tokens with bf16 or int8 weights take rows in the order of tiles");
  return format == WeightFormat::kBf16 ? read_alone_in_bf16(product, p) : read_alone_in_int8(product, p);
}
// Lets adapters update a product.
void update(LinearNode& product, const AdapterWeights& adapters, const std::optional<Place>& shrunk) {
  require(!product.logits && adapters.n_panels() == product.weight.padded_n() / kTileN &&
              adapters.k() == product.weight.k(),
          product.name, "the adapters are of another matrix");
  require(shrunk && shrunk->ld >= adapters.shrunk_columns(), product.name,
          "adapters need the result of their first matrices");
  product.adapters = &adapters;
  product.shrunk = *shrunk;
}
// Joins a sum over ranks with the product before it.
void join(ReduceNode& sum, LinearNode* product) {
  require(product != nullptr && !product->logits && product->activation == Activation::kNone, sum.name,
          "a sum over ranks can be fused only with the matrix product directly before it");
  const Place &made = product->out, &added = sum.partial;
  require(made.collective == added.collective && made.offset == added.offset && made.ld == added.ld &&
              made.ld == product->weight.padded_n(),
          sum.name, "the matrix product directly before the sum does not write the ranks' parts");
  product->sum = &sum;
  sum.product = product;
}
void join(AttentionNode& attention, RopeStoreNode* rope) {
  require(rope != nullptr && rope->kv.k == attention.kv.k && rope->q.offset == attention.q.offset, attention.name,
          "attention can be fused only with the operation that stores the keys and values of its layer");
  rope->attention = attention.work;
  attention.rope = rope;
}

}  // namespace

void require(bool holds, const std::string& node, const char* what) {
  if (!holds) throw std::invalid_argument(node + ": " + what);
}

void require_size(const std::optional<const PaddedVector*>& vector, int64_t size, const std::string& node) {
  require(!vector || (*vector)->size == size, node, "the norm weight or bias has the wrong number of values");
}

int64_t operand_columns(const PackedMatrix& weight, bool widened) {
  const bool whole = takes_int8(weight.format()) && !widened;
  return whole ? quantized_bytes(weight.k(), weight.group()) : round_up(weight.k(), kTileK);
}

void add(Program& p, const Embed& f) {
  require(f.table->format() == WeightFormat::kBf16, f.kKind, "the embedding table must be bf16");
  require(f.out.ld == f.table->depth(), f.kKind,
          "the output and the embedding table must have the same number of columns");
  auto node = std::make_unique<EmbedNode>(p.row_indices(f.index), *f.table, f.first_row, f.scale, f.out);
  node->accumulate = f.accumulate;
  p.add(std::move(node));
}

void add(Program& p, const RmsNorm& f) {
  require_size(f.weight, f.cols, f.kKind);
  require(f.x.ld >= f.cols && f.out.ld >= round_up(f.cols, kPad), f.kKind,
          "the input or the output has too few columns");
  if (f.quantized) require_quantized(f.kKind, f.out, *f.quantized);
  auto node = std::make_unique<NormNode>(f.x, data_or_null(f.weight), f.cols, f.out, f.eps);
  require(!f.beside || (f.cols % kPad == 0 && !f.quantized), f.kKind,
          "norms that write to one output must fill whole cache lines and must not be quantized");
  node->quantized = f.quantized;
  node->beside = f.beside;
  p.add(std::move(node));
}

void add(Program& p, const LayerNorm& f) {
  const int64_t cols = f.weight->size;
  require_size(f.bias, cols, f.kKind);
  require(cols > 0 && f.x.ld >= cols && f.out.ld >= round_up(cols, kPad), f.kKind,
          "the input or the output has too few columns for the weight");
  auto node = std::make_unique<LayerNormNode>(f.x, f.weight->padded.data(), data_or_null(f.bias), cols, f.out, f.eps);
  node->rounded = f.rounded;
  p.add(std::move(node));
}

void add(Program& p, const Quantize& f) {
  require(f.rows_per_token >= 1, f.kKind, "a token must have at least one row");
  require_quantized(f.kKind, f.x, f.out);
  p.add(std::make_unique<QuantizeNode>(f.x, f.out, f.rows_per_token, f.logits));
}

void add(Program& p, const Linear& f) {
  require(!f.accumulate || f.activation == Activation::kNone, f.name,
          "the result of an activation function cannot be added to the output");
  require(
      f.activation != Activation::kSwigluOai && f.activation != Activation::kTanh && f.activation != Activation::kRelu,
      f.name, "matrix products do not support this activation function");
  require(!f.widened || is_grouped(f.weight->format()), f.name,
          "only weights that are quantized in groups can be expanded to bf16");
  require(f.x.ld >= operand_columns(*f.weight, f.widened), f.name, "the input has too few columns for the weight");
  require(f.out.ld >= f.weight->padded_n() / (is_gated(f.activation) ? 2 : 1), f.name,
          "the output has too few columns for the weight");
  require_size(f.bias, f.weight->n(), f.name);
  auto node = std::make_unique<LinearNode>(f.name, f.x, *f.weight, f.out);
  node->bias = data_or_null(f.bias);
  node->activation = f.activation;
  node->widened = f.widened;
  node->accumulate = f.accumulate;
  node->logits = f.logits;
  if (f.adapters) update(*node, **f.adapters, f.shrunk);
  if (f.joins_before) join(*node, p.last<RowsNode>());
  if (f.reads_alone) read_alone(*node, p);
  p.add(std::move(node));
}

void add(Program& p, const Reduce& f) {
  auto node = std::make_unique<ReduceNode>(f.partial, f.residual, f.sum, f.cols);
  node->assign = f.assign;
  node->bias = data_or_null(f.bias);
  node->post_norm = data_or_null(f.post_norm);
  node->eps = f.eps;
  require(!f.scale || f.post_norm, f.kKind, "the residual stream can be scaled only after a sum that is normalised");
  node->scale = scale_or_one(f.scale, f.kKind);
  if (f.joins_before) join(*node, p.last<LinearNode>());
  p.add(std::move(node));
}

void add(Program& p, const Narrow& f) {
  require(f.x.ld >= f.out.ld, f.kKind, "the input has too few columns");
  require(!f.beside || !f.beside_out || f.beside->ld >= f.beside_out->ld, f.kKind,
          "the inputs of layers have too few columns");
  auto node = std::make_unique<NarrowNode>(f.x, f.out);
  node->beside = f.beside;
  node->beside_out = f.beside_out;
  p.add(std::move(node));
  p.narrow();
}

void add(Program& p, const AddNorm& f) {
  require(f.x.ld == f.residual.ld && f.x.ld >= f.weight->size, f.kKind,
          "the input and the residual stream must have the same number of columns, at least those of the weight");
  p.add(std::make_unique<AddNormNode>(f.x, f.residual, f.weight->values, f.eps, scale_or_one(f.scale, f.kKind)));
}

void add(Program& p, const LayerInputs& f) {
  const int64_t width = f.weight->size, cols = f.table->k();
  require(f.table->format() == WeightFormat::kBf16, f.kKind, "the table must be bf16");
  require(width > 0 && width % 2 == 0 && cols % width == 0, f.kKind,
          "every layer must have the same even number of columns in the table");
  require(f.x.ld >= cols && f.out.ld >= cols, f.kKind, "the input or the output has too few columns for the table");
  p.add(std::make_unique<LayerInputsNode>(f.x, f.out, f.weight->values, f.eps, *f.table, f.scale));
}

void add(Program& p, const Multiply& f) {
  require(f.activation != Activation::kSwigluOai && f.activation != Activation::kRelu2 &&
              f.activation != Activation::kGeglu && f.activation != Activation::kPlainGeluTanh,
          f.kKind, "the activation of a factor must be none, silu, gelu_tanh, gelu, tanh or relu");
  require(f.cols >= 0 && (!f.x || f.x->ld >= f.cols) && f.y.ld >= f.cols && f.out.ld >= f.cols && f.out.ld % kPad == 0,
          f.kKind, "an input or the output has too few columns");
  p.add(std::make_unique<MultiplyNode>(f.x, f.y, f.out, f.activation, f.cols, f.rounded));
}

void add(Program& p, const RopeStore& f) {
  const HeadGeometry& heads = p.kv().heads(f.cache);
  require(f.rope.has_value() != f.rope_rows.has_value(), f.kKind, "there must be a rope, or rows of cosines and sines");
  const int32_t half = f.rope ? (*f.rope)->half : f.pairs, distance = f.rope ? (*f.rope)->distance : f.pairs;
  require(distance + half <= heads.head_dim, f.kKind, "the table of rotary positions has more columns than a head");
  require(f.source != KvSource::kKeys || heads.values() == heads.head_dim, f.kKind,
          "values that are keys must have the dimensions of keys");
  require(f.qkv.ld >= projected_columns(heads, f.source) && f.q.ld == heads.q_heads * heads.head_tiles() * kTileK,
          f.kKind, "the number of columns does not match the number and size of the heads");
  require_size(f.q_norm, heads.head_dim, f.kKind);
  require_size(f.k_norm, heads.head_dim, f.kKind);
  require(!f.rope_rows || f.rope_rows->ld >= 2 * half, f.kKind, "the rows of cosines and sines have too few columns");
  if (f.rope_rows) p.require_all_tokens();
  auto node = std::make_unique<RopeStoreNode>(f.qkv, f.q, heads, p.kv().layer(f.cache));
  node->rope_rows = f.rope_rows;
  node->rot_dim = 2 * half;
  node->distance = distance;
  if (f.rope) {
    const RopeTable& table = **f.rope;
    p.step().limit_positions(table.positions);
    node->cos = table.cos.data();
    node->sin = table.sin.data();
    node->q_scale = table.query_scale();
  }
  node->q_norm = data_or_null(f.q_norm);
  node->k_norm = data_or_null(f.k_norm);
  node->eps = f.eps;
  node->norm = f.norm;
  node->table = p.kv().table(f.cache);
  node->source = f.source;
  node->norm_values = f.norm_values;
  p.add(std::move(node));
}

void add(Program& p, const Attention& f) {
  const HeadGeometry& heads = p.kv().heads(f.cache);
  require(f.q.ld == heads.q_heads * heads.head_tiles() * kTileK && f.out.ld >= heads.q_heads * heads.values() &&
              f.partial.ld >= round_up(heads.values(), kTileK) + kPartialExtra,
          f.kKind, "the number of columns does not match the number and size of the heads");
  require(f.scale > 0.0f && f.value_scale > 0.0f, f.kKind, "the scales of scores and of values must be above 0");
  require(!heads.latent || f.value_scale == 1.0f, f.kKind, "the values of a KV cache of latents cannot be scaled");
  require_size(f.sinks, heads.q_heads, f.kKind);
  auto node = std::make_unique<AttentionNode>(f.q, f.out, f.partial, heads, p.kv().layer(f.cache), p.next_counter());
  node->scale = f.scale;
  node->softcap = f.softcap;
  node->value_scale = f.value_scale;
  node->sinks = data_or_null(f.sinks);
  node->block_groups = p.context_parallel().world;
  node->work = f.cache.kind;
  if (f.joins_before) join(*node, p.last<RopeStoreNode>());
  p.add(std::move(node));
}

void add(Program& p, const Gather& f) {
  require(f.x.ld == f.out.ld, f.kKind, "the input and the output must have the same number of columns");
  p.add(std::make_unique<GatherNode>(f.x, f.out));
}

void add(Program& p, const Pool& f) {
  require_size(f.weight, f.cols, f.kKind);
  require(f.x.ld >= f.cols && f.out.ld >= round_up(f.cols, kPad), f.kKind,
          "the input or the output has too few columns");
  require(f.out.collective < 0, f.kKind, "the output must not be a message to other ranks");
  p.add(std::make_unique<PoolNode>(f.x, f.pooling, data_or_null(f.weight), f.cols, f.out, f.eps));
  p.pool();
}

void add(Program& p, const Pooled& f) {
  require(f.cols > 0 && f.x.ld >= f.cols, f.kKind, "the vectors have too few columns");
  require(f.x.collective < 0, f.kKind, "the vectors must not be a message to other ranks");
  p.pool_to(f.x, f.cols);
}

void add(Program& p, const TokenRows& f) {
  require(f.x.ld >= f.cols && f.out.ld >= round_up(f.cols, kPad), f.kKind,
          "the input or the output has too few columns");
  p.give_tokens();
  p.add(std::make_unique<NormNode>(f.x, nullptr, f.cols, f.out, 0.0f));
}

void add(Program& p, const DividedNorm& f) {
  const size_t count = f.weights.size();
  require(count > 0 && f.counted.size() == count && f.columns.size() == count, f.kKind,
          "every vector must have a weight and two numbers of columns");
  require(f.message.ld >= static_cast<int64_t>(count), f.kKind, "the message has too few columns for the sums");
  int64_t own = 0;
  std::vector<DividedVector> vectors;
  for (size_t i = 0; i < count; ++i) {
    const PaddedVector& weight = *f.weights[i];
    require(f.counted[i] >= 0 && f.counted[i] <= weight.size && f.counted[i] <= f.columns[i] && f.columns[i] > 0 &&
                (p.world() > 1 || f.counted[i] == f.columns[i]),
            f.kKind, "the columns of the ranks do not cover the vectors");
    vectors.push_back({weight.padded.data(), weight.size, f.counted[i], f.columns[i]});
    own += weight.size;
  }
  require(own <= f.x.ld, f.kKind, "the input has too few columns for the weights");
  p.add(std::make_unique<DividedNormNode>(f.x, f.message, std::move(vectors), f.eps));
}

void add(Program& p, const GroupNorm& f) {
  require(!f.weights.empty(), f.kKind, "every group must have a weight");
  const int64_t count = static_cast<int64_t>(f.weights.size()), cols = f.weights.front()->size;
  std::vector<const float*> weights;
  for (const PaddedVector* weight : f.weights) {
    require_size(weight, cols, f.kKind);
    weights.push_back(weight->padded.data());
  }
  require(cols % kPad == 0, f.kKind, "groups must fill whole cache lines of the output");
  require(f.x.ld >= count * cols && f.out.ld >= count * cols, f.kKind, "the input or the output has too few columns");
  p.add(std::make_unique<GroupNormNode>(f.x, std::move(weights), cols, f.out, f.eps));
}

void add(Program& p, const GatherColumns& f) {
  const std::vector<int32_t>& bounds = f.bounds;
  require(p.world() > 1 && static_cast<int>(bounds.size()) == p.world() + 1 && bounds.front() == 0 &&
              std::is_sorted(bounds.begin(), bounds.end()) && bounds.back() <= f.out.ld &&
              std::all_of(bounds.begin(), bounds.end(),
                          [&](int32_t bound) { return bound % kPad == 0 || bound == bounds.back(); }),
          f.kKind, "the columns of the ranks do not cover the output");
  p.add(std::make_unique<GatherColumnsNode>(f.message, f.out, bounds));
}

void add(Program& p, const Sample& f) {
  const std::vector<int64_t>& bounds = f.vocab_first;
  require(static_cast<int>(bounds.size()) == p.world() + 1 && bounds.front() == 0 &&
              bounds.back() == p.slots().vocabulary() && std::is_sorted(bounds.begin(), bounds.end()),
          f.kKind, "the token ids of the ranks do not cover the vocabulary");
  p.add(std::make_unique<SampleNode>(f.logits, f.tokens, bounds, f.softcap));
}

}  // namespace operation
}  // namespace numaserve
