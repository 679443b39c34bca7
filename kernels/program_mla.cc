// The nodes of multi-head latent attention, for Program.
#include <memory>
#include <string>
#include <utility>

#include "kernels/program_module.h"
#include "kernels/runtime/context_parallel.h"
#include "kernels/runtime/mla_nodes.h"

namespace nb = nanobind;

namespace numaserve {
namespace {

void add_store(Program& p, const PlaceTuple& q, const PlaceTuple& kv, const PlaceTuple& nope, const PlaceTuple& query,
               int64_t layer, int32_t nope_dim, const RopeTable& rope, const PaddedVector& norm, float eps) {
  const std::string name = "mla_store";
  const HeadGeometry& heads = p.heads();
  require(heads.latent(), name, "the KV cache is not latent");
  require(nope_dim > 0 && nope_dim % kPad == 0 && 2 * rope.half == heads.head_dim - heads.value_dim, name,
          "a head does not have the size of the latent cache");
  require(place(q).ld >= heads.q_heads * (nope_dim + 2 * rope.half) && place(kv).ld >= heads.head_dim &&
              place(nope).ld >= heads.q_heads * nope_dim && place(query).ld == heads.q_heads * heads.head_dim,
          name, "the matrices do not have the width of the heads");
  require_size(&norm, heads.value_dim, name);
  p.step().limit_positions(rope.positions);
  auto node =
      std::make_unique<MlaStoreNode>(place(q), place(kv), place(nope), place(query), heads, p.kv().layer(layer));
  node->nope_dim = nope_dim;
  node->cos = rope.cos.data();
  node->sin = rope.sin.data();
  node->positions = rope.positions;
  node->norm = norm.padded.data();
  node->eps = eps;
  p.add(std::move(node));
}

void add_head_linear(Program& p, const std::string& name, const PlaceTuple& x, int64_t x_stride,
                     const PackedMatrix& weight, int32_t num_heads, bool widened, const PlaceTuple& out,
                     int64_t out_stride) {
  require(!widened || is_grouped(weight.format()), name, "only codes in groups are widened");
  require(
      num_heads >= 0 && weight.n() % (num_heads > 0 ? num_heads * kPad : 1) == 0 && (num_heads > 0 || weight.n() == 0),
      name, "the weight does not have a multiple of 32 rows for each head");
  const int64_t columns = num_heads > 0 ? weight.n() / num_heads : 0;
  require(num_heads == 0 || (x_stride % kPad == 0 && x_stride >= operand_columns(weight, widened) &&
                             place(x).ld >= num_heads * x_stride),
          name, "the input is narrower than the weight");
  require(out_stride >= columns && place(out).ld >= num_heads * out_stride, name,
          "the output is narrower than the weight");
  auto node = std::make_unique<HeadLinearNode>(name, place(x), x_stride, weight, num_heads, place(out), out_stride);
  node->widened = widened;
  p.add(std::move(node));
}

void add_quantize_heads(Program& p, const PlaceTuple& x, int64_t x_stride, const QuantizedTuple& out,
                        int64_t out_stride, int32_t num_heads) {
  const std::string name = "quantize";
  const auto& [to, cols, group] = out;
  require(num_heads >= 0 && cols >= 0 && group >= 0, name, "impossible sizes");
  require(x_stride >= round_up(cols, kPad) && place(x).ld >= num_heads * x_stride, name,
          "the input is narrower than the heads");
  require(out_stride >= quantised_bytes(cols, group) && place(to).ld >= num_heads * out_stride, name,
          "the output is narrower than the heads");
  auto node = std::make_unique<QuantizeNode>(place(x), Quantized{place(to), cols, group}, 1, false);
  node->heads = num_heads;
  node->x_stride = x_stride;
  node->out_stride = out_stride;
  p.add(std::move(node));
}

const std::vector<int32_t>& head_bounds(const Program& p, const std::string& name) {
  require(p.context_parallel().world > 1, name, "the ranks do not divide sequences");
  return p.context_parallel().head_bounds;
}

void add_gather_queries(Program& p, const PlaceTuple& query, const PlaceTuple& message, const PlaceTuple& gathered) {
  const std::string name = "gather_queries";
  const int32_t dim = p.heads().head_dim, all = head_bounds(p, name).back();
  require(place(query).ld == p.heads().q_heads * dim && place(gathered).ld >= all * dim, name,
          "the matrices do not have the width of the heads");
  p.add(std::make_unique<GatherQueriesNode>(place(query), place(message), place(gathered), dim, head_bounds(p, name)));
}

void add_divided_attention(Program& p, const PlaceTuple& q, const PlaceTuple& message, const PlaceTuple& out,
                           const PlaceTuple& partial, int64_t layer, float scale) {
  const std::string name = "divided_attention";
  const std::vector<int32_t>& bounds = head_bounds(p, name);
  const HeadGeometry all = p.context_parallel().all_heads(p.heads());
  require(place(q).ld == all.q_heads * all.head_dim && place(out).ld >= p.heads().q_heads * all.value_dim &&
              place(partial).ld >= all.value_dim + kPartialExtra,
          name, "the matrices do not have the width of the heads");
  require(scale > 0.0f, name, "the scale must be above 0");
  auto node = std::make_unique<DividedAttentionNode>(place(q), place(message), place(out), place(partial), all,
                                                     p.kv().layer(layer), bounds);
  node->scale = scale;
  p.add(std::move(node));
}

}  // namespace

void bind_mla(nb::class_<Program>& program) {
  program
      .def("mla_store", &add_store, nb::arg("q"), nb::arg("kv"), nb::arg("nope"), nb::arg("query"), nb::arg("layer"),
           nb::arg("nope_dim"), nb::arg("rope"), nb::arg("norm"), nb::arg("eps"), nb::keep_alive<1, 8>(),
           nb::keep_alive<1, 9>())
      .def("head_linear", &add_head_linear, nb::arg("name"), nb::arg("x"), nb::arg("x_stride"), nb::arg("weight"),
           nb::arg("num_heads"), nb::arg("widened"), nb::arg("out"), nb::arg("out_stride"), nb::keep_alive<1, 5>())
      .def("quantize_heads", &add_quantize_heads, nb::arg("x"), nb::arg("x_stride"), nb::arg("out"),
           nb::arg("out_stride"), nb::arg("num_heads"))
      .def("gather_queries", &add_gather_queries, nb::arg("query"), nb::arg("message"), nb::arg("gathered"))
      .def("divided_attention", &add_divided_attention, nb::arg("q"), nb::arg("message"), nb::arg("out"),
           nb::arg("partial"), nb::arg("layer"), nb::arg("scale"));
}

}  // namespace numaserve
