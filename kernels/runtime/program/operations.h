// The operations of a Program as data: for each kind, a struct of its arguments and the function that adds it.
//
// A struct lists its fields once, in the order of `visit`; bindings/arguments.h fills it from a dict with these names.
// An optional field is then std::nullopt. Weights, vectors and tables outlive the Program, whose nodes point into them.
// Each `add` throws std::invalid_argument, which names the node, for arguments that do not fit each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/runtime/program/program.h"
#include "kernels/runtime/program/vectors.h"

namespace numaserve {

// Returns the activation of a name: none, silu, gelu_tanh, swiglu_oai, relu2, gelu, plain_gelu_tanh or geglu. Throws
// std::invalid_argument for another name.
Activation activation_of(std::string_view name);

// Returns the norm of a name: none, before or after. Throws std::invalid_argument for another name.
HeadNorm head_norm_of(std::string_view name);

// Returns the source of a name: projected, keys or cached. Throws std::invalid_argument for another name.
KvSource kv_source_of(std::string_view name);

// Returns the pooling of a name: last, cls, mean or max. Throws std::invalid_argument for another name.
Pooling pooling_of(std::string_view name);

namespace operation {

struct Embed {
  static constexpr const char* kKind = "embed";
  const PackedMatrix* table;
  int64_t first_row;
  float scale;
  Place out;
  RowIndex index;
  bool accumulate;
  void visit(auto&& field) {
    field("table", table), field("first_row", first_row), field("scale", scale), field("out", out);
    field("index", index), field("accumulate", accumulate);
  }
};

struct RmsNorm {
  static constexpr const char* kKind = "rms_norm";
  Place x;
  std::optional<const PaddedVector*> weight;  // without a weight x is only rounded
  int64_t cols;
  Place out;
  float eps;
  std::optional<Quantized> quantized;
  bool beside;
  void visit(auto&& field) {
    field("x", x), field("weight", weight), field("cols", cols), field("out", out), field("eps", eps);
    field("quantized", quantized), field("beside", beside);
  }
};

struct LayerNorm {
  static constexpr const char* kKind = "layer_norm";
  Place x;
  const PaddedVector* weight;
  std::optional<const PaddedVector*> bias;
  Place out;
  float eps;
  bool rounded;
  void visit(auto&& field) {
    field("x", x), field("weight", weight), field("bias", bias), field("out", out), field("eps", eps);
    field("rounded", rounded);
  }
};

struct Quantize {
  static constexpr const char* kKind = "quantize";
  Place x;
  Quantized out;
  int64_t rows_per_token;
  bool logits;
  void visit(auto&& field) {
    field("x", x), field("out", out), field("rows_per_token", rows_per_token), field("logits", logits);
  }
};

struct Linear {
  static constexpr const char* kKind = "linear";
  std::string name;
  Place x;
  const PackedMatrix* weight;
  std::optional<const PaddedVector*> bias;
  Activation activation;
  bool widened, accumulate, logits;
  Place out;
  bool joins_before;  // the previous operation makes the input, which only this one reads
  bool reads_alone;   // the same, in bf16 or int8 without groups: rows may be in the order of tiles
  std::optional<const AdapterWeights*> adapters;
  std::optional<Place> shrunk;  // what the operation before has made for the adapters
  void visit(auto&& field) {
    field("name", name), field("x", x), field("weight", weight), field("bias", bias), field("activation", activation);
    field("widened", widened), field("accumulate", accumulate), field("logits", logits), field("out", out);
    field("joins_before", joins_before), field("reads_alone", reads_alone);
    field("adapters", adapters), field("shrunk", shrunk);
  }
};

struct Reduce {
  static constexpr const char* kKind = "reduce";
  Place partial, residual, sum;
  int64_t cols;
  bool assign;
  std::optional<const PaddedVector*> bias, post_norm;
  float eps;
  std::optional<const PaddedVector*> scale;  // of the stream after the sum; only with a norm of the sum
  bool joins_before;  // the previous operation is a product, the same on all ranks, whose result only this one reads
  void visit(auto&& field) {
    field("partial", partial), field("residual", residual), field("sum", sum), field("cols", cols);
    field("assign", assign), field("bias", bias), field("post_norm", post_norm), field("eps", eps);
    field("scale", scale), field("joins_before", joins_before);
  }
};

struct Narrow {
  static constexpr const char* kKind = "narrow";
  Place x, out;
  std::optional<Place> beside, beside_out;
  void visit(auto&& field) {
    field("x", x), field("out", out), field("beside", beside), field("beside_out", beside_out);
  }
};

struct AddNorm {
  static constexpr const char* kKind = "add_norm";
  Place x, residual;
  const PaddedVector* weight;
  float eps;
  std::optional<const PaddedVector*> scale;  // of the stream after the sum
  void visit(auto&& field) {
    field("x", x), field("residual", residual), field("weight", weight), field("eps", eps), field("scale", scale);
  }
};

struct LayerInputs {
  static constexpr const char* kKind = "layer_inputs";
  Place x, out;
  const PaddedVector* weight;  // of the norm of each layer's columns
  float eps;
  const PackedMatrix* table;
  float scale;  // of the table
  void visit(auto&& field) {
    field("x", x), field("out", out), field("weight", weight), field("eps", eps), field("table", table);
    field("scale", scale);
  }
};

struct Multiply {
  static constexpr const char* kKind = "multiply";
  std::optional<Place> x;
  Place y, out;
  Activation activation;
  int64_t cols;
  bool rounded;
  void visit(auto&& field) {
    field("x", x), field("y", y), field("out", out), field("activation", activation), field("cols", cols);
    field("rounded", rounded);
  }
};

struct RopeStore {
  static constexpr const char* kKind = "rope_store";
  Place qkv, q;
  CacheIndex cache;
  std::optional<const RopeTable*> rope;
  std::optional<Place> rope_rows;  // fp32 [tokens, cosines of `pairs`, then sines], in place of `rope`
  int32_t pairs;                   // of `rope_rows`
  std::optional<const PaddedVector*> q_norm, k_norm;
  float eps;
  HeadNorm norm;
  KvSource source;
  bool norm_values;
  void visit(auto&& field) {
    field("qkv", qkv), field("q", q), field("cache", cache), field("rope", rope);
    field("rope_rows", rope_rows), field("pairs", pairs), field("q_norm", q_norm), field("k_norm", k_norm),
        field("eps", eps);
    field("norm", norm), field("source", source), field("norm_values", norm_values);
  }
};

struct Attention {
  static constexpr const char* kKind = "attention";
  Place q, out, partial;
  CacheIndex cache;
  float scale;
  float softcap;
  float value_scale;
  std::optional<const PaddedVector*> sinks;
  bool joins_before;  // the previous operation stores the same keys and values; only this one reads its queries
  void visit(auto&& field) {
    field("q", q), field("out", out), field("partial", partial), field("cache", cache), field("scale", scale);
    field("softcap", softcap), field("value_scale", value_scale), field("sinks", sinks);
    field("joins_before", joins_before);
  }
};

struct Gather {
  static constexpr const char* kKind = "gather";
  Place x, out;
  void visit(auto&& field) { field("x", x), field("out", out); }
};

struct Pool {
  static constexpr const char* kKind = "pool";
  Place x;
  Pooling pooling;
  std::optional<const PaddedVector*> weight;  // of the final norm
  int64_t cols;
  Place out;
  float eps;
  void visit(auto&& field) {
    field("x", x), field("pooling", pooling), field("weight", weight), field("cols", cols), field("out", out);
    field("eps", eps);
  }
};

// The vectors that pooled sequences have after the step.
struct Pooled {
  static constexpr const char* kKind = "pooled";
  Place x;
  int64_t cols;
  void visit(auto&& field) { field("x", x), field("cols", cols); }
};

// The rows of all tokens, rounded, for the nodes after it: all of them run only in a step with a pooled sequence that
// asks for vectors of its tokens.
struct TokenRows {
  static constexpr const char* kKind = "token_rows";
  Place x, out;
  int64_t cols;
  void visit(auto&& field) { field("x", x), field("out", out), field("cols", cols); }
};

struct DividedNorm {
  static constexpr const char* kKind = "divided_norm";
  Place x, message;
  std::vector<const PaddedVector*> weights;  // of each vector, the rank's columns
  std::vector<int64_t> counted, columns;     // see DividedVector::counted and all_cols
  float eps;
  void visit(auto&& field) {
    field("x", x), field("message", message), field("weights", weights), field("counted", counted);
    field("columns", columns), field("eps", eps);
  }
};

struct GroupNorm {
  static constexpr const char* kKind = "group_norm";
  Place x;
  std::vector<const PaddedVector*> weights;  // of each group, all of the same size
  Place out;
  float eps;
  void visit(auto&& field) { field("x", x), field("weights", weights), field("out", out), field("eps", eps); }
};

struct GatherColumns {
  static constexpr const char* kKind = "gather_columns";
  Place message, out;
  std::vector<int32_t> bounds;
  void visit(auto&& field) { field("message", message), field("out", out), field("bounds", bounds); }
};

struct Sample {
  static constexpr const char* kKind = "sample";
  Place logits, tokens;
  std::vector<int64_t> vocab_first;
  float softcap;
  void visit(auto&& field) {
    field("logits", logits), field("tokens", tokens), field("vocab_first", vocab_first), field("softcap", softcap);
  }
};

void add(Program& p, const Embed& f);
void add(Program& p, const RmsNorm& f);
void add(Program& p, const LayerNorm& f);
void add(Program& p, const Quantize& f);
void add(Program& p, const Linear& f);
void add(Program& p, const Reduce& f);
void add(Program& p, const Narrow& f);
void add(Program& p, const AddNorm& f);
void add(Program& p, const LayerInputs& f);
void add(Program& p, const Multiply& f);
void add(Program& p, const RopeStore& f);
void add(Program& p, const Attention& f);
void add(Program& p, const Gather& f);
void add(Program& p, const Pool& f);
void add(Program& p, const Pooled& f);
void add(Program& p, const TokenRows& f);
void add(Program& p, const DividedNorm& f);
void add(Program& p, const GroupNorm& f);
void add(Program& p, const GatherColumns& f);
void add(Program& p, const Sample& f);

// Throws std::invalid_argument with the node's name unless `holds`.
void require(bool holds, const std::string& node, const char* what);

// A weight per column or per dimension, where there is one.
void require_size(const std::optional<const PaddedVector*>& vector, int64_t size, const std::string& node);

inline const float* data_or_null(const std::optional<const PaddedVector*>& vector) {
  return vector ? (*vector)->padded.data() : nullptr;
}

// Columns that a product's operand has at least, as the product reads it.
int64_t operand_columns(const PackedMatrix& weight, bool widened);

}  // namespace operation
}  // namespace numaserve
