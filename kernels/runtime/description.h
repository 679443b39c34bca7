// Descriptions of a Program's nodes by which two Programs can be compared: without times, and without addresses.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/runtime/nodes.h"

namespace numaserve {

class Description {
 public:
  using Value = std::variant<int64_t, double, std::string, std::vector<int64_t>>;

  // A matrix that the node reads, writes, or updates: what it leaves of it was there before.
  struct Operand {
    std::string role, access, type;
    Place place;
  };
  struct Weight {
    std::string role;
    const PackedMatrix* matrix;
  };
  struct Values {
    std::string role;
    int64_t count;
    uint64_t checksum;
  };

  // `kv`: where the Program's KV cache begins.
  Description(const Step& step_in, const std::byte* kv) : step(step_in), kv_(kv) {}

  void integer(const char* name, int64_t value) { attributes.emplace_back(name, value); }
  void number(const char* name, float value) { attributes.emplace_back(name, static_cast<double>(value)); }
  void text(const char* name, std::string value) { attributes.emplace_back(name, std::move(value)); }
  void integers(const char* name, std::vector<int64_t> values) { attributes.emplace_back(name, std::move(values)); }
  void heads(const HeadGeometry& heads);
  void kv(const KvLayer& layer);
  void activation(Activation activation);

  void reads(const char* role, const char* type, const Place& place) {
    operands.push_back({role, "read", type, place});
  }
  void writes(const char* role, const char* type, const Place& place) {
    operands.push_back({role, "write", type, place});
  }
  void updates(const char* role, const char* type, const Place& place) {
    operands.push_back({role, "update", type, place});
  }
  void weight(const char* role, const PackedMatrix& matrix) { weights.push_back({role, &matrix}); }
  // Nothing where `values` is null.
  void vector(const char* role, const float* values, int64_t count);

  const Step& step;
  std::vector<std::pair<std::string, Value>> attributes;
  std::vector<Operand> operands;
  std::vector<Weight> weights;
  std::vector<Values> vectors;

 private:
  const std::byte* kv_;
};

}  // namespace numaserve
