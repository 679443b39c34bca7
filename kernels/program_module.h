// What the bindings of a Program's nodes share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "kernels/runtime/program.h"

namespace numaserve {

// Binds Vector, RopeTable and Program.
void bind_program(nanobind::module_& m);

// Adds the nodes of a mixture of experts to Program.
void bind_moe(nanobind::class_<Program>& program);

// Adds the nodes of multi-head latent attention to Program.
void bind_mla(nanobind::class_<Program>& program);

// Adds what a Program is made of to it, for comparing two.
void bind_describe(nanobind::class_<Program>& program);

using Floats = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Table = nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using PlaceTuple = std::tuple<int64_t, int64_t, int32_t>;         // offset, ld, collective
using QuantizedTuple = std::tuple<PlaceTuple, int64_t, int64_t>;  // where to, columns, group

// Kernels read whole registers: vectors are padded with zeros.
struct PaddedVector {
  explicit PaddedVector(const Floats& source) : size(static_cast<int64_t>(source.size())) {
    values.assign(source.data(), source.data() + source.size());
    padded = values;
    padded.resize(static_cast<size_t>(round_up(size, kPad)), 0.0f);
  }
  int64_t size;
  Vector values, padded;
};

struct RopeTable {
  RopeTable(const Table& cos_in, const Table& sin_in)
      : positions(static_cast<int64_t>(cos_in.shape(0))), half(static_cast<int32_t>(cos_in.shape(1))) {
    if (sin_in.shape(0) != cos_in.shape(0) || sin_in.shape(1) != cos_in.shape(1))
      throw std::invalid_argument("the cosine and sine tables differ in shape");
    cos.assign(cos_in.data(), cos_in.data() + cos_in.size());
    sin.assign(sin_in.data(), sin_in.data() + sin_in.size());
  }
  int64_t positions;
  int32_t half;
  Vector cos, sin;
};

inline void require(bool holds, const std::string& node, const char* what) {
  if (!holds) throw std::invalid_argument(node + ": " + what);
}

// A weight per column or per dimension, where there is one.
inline void require_size(const PaddedVector* vector, int64_t size, const std::string& node) {
  require(vector == nullptr || vector->size == size, node,
          "a norm weight or bias has another size than what it is for");
}

inline Place place(const PlaceTuple& t) { return {std::get<0>(t), std::get<1>(t), std::get<2>(t)}; }
inline const float* data_or_null(const PaddedVector* vector) {
  return vector == nullptr ? nullptr : vector->padded.data();
}

// By its name: none, silu, gelu_tanh or swiglu_oai.
inline Activation activation_of(const std::string& name) {
  return name == "silu"         ? Activation::kSilu
         : name == "gelu_tanh"  ? Activation::kGeluTanh
         : name == "swiglu_oai" ? Activation::kSwigluOai
         : name == "none"       ? Activation::kNone
                                : throw std::invalid_argument("unknown activation " + name);
}

// How experts are chosen, but for the logits. Throws std::invalid_argument for what cannot be.
RouteArgs routing(int32_t num_experts, int32_t top_k, const std::string& scoring, bool renormalize, float scale,
                  const PaddedVector* correction, int32_t num_groups, int32_t top_groups,
                  const std::string& group_score);

// Columns that a product's operand has at least, as the product reads it.
inline int64_t operand_columns(const PackedMatrix& weight, bool widened) {
  const bool whole = takes_int8(weight.format()) && !widened;
  return whole ? quantised_bytes(weight.k(), weight.group()) : round_up(weight.k(), kTileK);
}

}  // namespace numaserve
