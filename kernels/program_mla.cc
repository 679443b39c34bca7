// The nodes of multi-head latent attention, for Program.
#include <memory>
#include <string>
#include <utility>

#include "kernels/program_module.h"
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
  node->norm = norm.padded.data();
  node->eps = eps;
  p.add(std::move(node));
}

void add_head_linear(Program& p, const std::string& name, const PlaceTuple& x, int64_t x_stride,
                     const PackedMatrix& weight, int32_t num_heads, const PlaceTuple& out, int64_t out_stride) {
  require(weight.format() == WeightFormat::kBf16, name, "the weights of heads must be bf16");
  require(
      num_heads >= 0 && weight.n() % (num_heads > 0 ? num_heads * kPad : 1) == 0 && (num_heads > 0 || weight.n() == 0),
      name, "the weight does not have a multiple of 32 rows for each head");
  const int64_t columns = num_heads > 0 ? weight.n() / num_heads : 0;
  require(num_heads == 0 || (x_stride % kPad == 0 && x_stride >= weight.k() && place(x).ld >= num_heads * x_stride),
          name, "the input is narrower than the weight");
  require(out_stride >= columns && place(out).ld >= num_heads * out_stride, name,
          "the output is narrower than the weight");
  p.add(std::make_unique<HeadLinearNode>(name, place(x), x_stride, weight, num_heads, place(out), out_stride));
}

}  // namespace

void bind_mla(nb::class_<Program>& program) {
  program
      .def("mla_store", &add_store, nb::arg("q"), nb::arg("kv"), nb::arg("nope"), nb::arg("query"), nb::arg("layer"),
           nb::arg("nope_dim"), nb::arg("rope"), nb::arg("norm"), nb::arg("eps"), nb::keep_alive<1, 8>(),
           nb::keep_alive<1, 9>())
      .def("head_linear", &add_head_linear, nb::arg("name"), nb::arg("x"), nb::arg("x_stride"), nb::arg("weight"),
           nb::arg("num_heads"), nb::arg("out"), nb::arg("out_stride"), nb::keep_alive<1, 5>());
}

}  // namespace numaserve
