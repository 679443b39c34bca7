// The operations of latent attention as data; see operations.h. Attention itself is the operation that all models use.
#pragma once

#include <string>

#include "kernels/runtime/program/operations.h"

namespace numaserve::operation {

struct LatentStore {
  static constexpr const char* kKind = "latent_store";
  Place q, kv, nope, query;
  CacheIndex cache;
  int32_t nope_dim;
  const RopeTable* rope;
  const PaddedVector* norm;
  float eps;
  void visit(auto&& field) {
    field("q", q), field("kv", kv), field("nope", nope), field("query", query), field("cache", cache);
    field("nope_dim", nope_dim), field("rope", rope), field("norm", norm), field("eps", eps);
  }
};

struct HeadLinear {
  static constexpr const char* kKind = "head_linear";
  std::string name;
  Place x;
  int64_t x_stride;
  const PackedMatrix* weight;
  int32_t num_heads;
  bool widened;
  Place out;
  int64_t out_stride;
  void visit(auto&& field) {
    field("name", name), field("x", x), field("x_stride", x_stride), field("weight", weight);
    field("num_heads", num_heads), field("widened", widened), field("out", out), field("out_stride", out_stride);
  }
};

struct QuantizeHeads {
  static constexpr const char* kKind = "quantize_heads";
  Place x;
  int64_t x_stride;
  Quantized out;
  int64_t out_stride;
  int32_t num_heads;
  void visit(auto&& field) {
    field("x", x), field("x_stride", x_stride), field("out", out), field("out_stride", out_stride);
    field("num_heads", num_heads);
  }
};

struct GatherQueries {
  static constexpr const char* kKind = "gather_queries";
  Place query, message, gathered;
  void visit(auto&& field) { field("query", query), field("message", message), field("gathered", gathered); }
};

struct DividedAttention {
  static constexpr const char* kKind = "divided_attention";
  Place q, message, out, partial;
  CacheIndex cache;
  float scale;
  void visit(auto&& field) {
    field("q", q), field("message", message), field("out", out), field("partial", partial), field("cache", cache);
    field("scale", scale);
  }
};

void add(Program& p, const LatentStore& f);
void add(Program& p, const HeadLinear& f);
void add(Program& p, const QuantizeHeads& f);
void add(Program& p, const GatherQueries& f);
void add(Program& p, const DividedAttention& f);

}  // namespace numaserve::operation
