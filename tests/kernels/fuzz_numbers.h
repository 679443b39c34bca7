// Numbers out of an input of random bytes.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace numaserve::testing {

// Reads numbers out of an input; zeros come after its end.
class Numbers {
 public:
  explicit Numbers(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t byte() {
    if (bytes_.empty()) return 0;
    const uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  // Mostly from 0 to `usual`, else any: a plan that is wrong everywhere is refused at the first place.
  int32_t number(int32_t usual) {
    const uint8_t value = byte();
    if (value < 248) return value % (usual + 1);
    if (value == 248) return -1;
    if (value == 249) return usual + 1;
    uint32_t any = 0;
    for (int i = 0; i < 4; ++i) any = any << 8 | byte();
    return static_cast<int32_t>(any);
  }
  std::vector<int32_t> list(int32_t longest, int32_t usual) {
    std::vector<int32_t> values(byte() % static_cast<size_t>(longest + 1));
    for (int32_t& value : values) value = number(usual);
    return values;
  }

 private:
  std::span<const uint8_t> bytes_;
};

inline std::vector<uint8_t> random_input(std::mt19937_64& random) {
  std::vector<uint8_t> input(random() % 400);
  // Small numbers are met more often: they are usual ones.
  const uint64_t most = random() % 3 == 0 ? 256 : 248;
  for (uint8_t& byte : input) byte = static_cast<uint8_t>(random() % most);
  return input;
}

}  // namespace numaserve::testing
