// The keys and values that the layers of a Program keep in pages.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/runtime/attention/attention_plan.h"
#include "kernels/runtime/machine/memory.h"

namespace numaserve {

// Returns the dtype of a name: bf16, int8 or fp8_e4m3. Throws std::invalid_argument for another name.
KvDtype kv_dtype(std::string_view name);

// Layers with equal heads and an equal window. A step's attention is planned once for each kind.
struct CacheKind {
  HeadGeometry heads;
  Window window;
  int64_t layers = 0;
  size_t table = 0;  // the page table that they use: 0, or one of its window; see SlotTable
};

// The cache of a layer: its kind, and its number among the layers of that kind.
struct CacheIndex {
  int32_t kind = 0;
  int64_t layer = 0;
};

// The KV cache of a rank: for each layer, page and KV head K and, unless the cache is latent, V; see KvLayer. Layers
// lie one after another, kind by kind.
class KvCache {
 public:
  // `table_pages` are the pages of each page table. Throws std::invalid_argument for heads that attention does not
  // support, such as latents with a quantized dtype, and for kinds that cannot share a page table.
  //
  // With a `lender`, which outlives it, the cache has no memory of its own: its layers are those of the lender, for
  // other query heads and windows. Throws std::invalid_argument for layers that differ in anything else.
  KvCache(std::vector<CacheKind> kinds, std::span<const int64_t> table_pages, KvDtype dtype,
          const KvCache* lender = nullptr);
  const std::vector<CacheKind>& kinds() const { return kinds_; }
  // These throw std::invalid_argument for an index out of range.
  const HeadGeometry& heads(const CacheIndex& index) const { return kind(index).heads; }
  size_t table(const CacheIndex& index) const { return kind(index).table; }
  KvLayer layer(const CacheIndex& index) const;
  // Returns the memory of each layer, none if it is a lender's.
  std::vector<std::span<std::byte>> layers() const;
  const LargeBuffer& buffer() const { return buffer_; }

 private:
  struct Layout {
    int64_t offset, values, head_stride, page_stride, layer_stride;  // `values`: of V, after the K of its head
    int64_t layers;
    bool operator==(const Layout&) const = default;
  };
  const CacheKind& kind(const CacheIndex& index) const;

  KvDtype dtype_;
  std::vector<CacheKind> kinds_;
  std::vector<Layout> layouts_;  // of each kind
  LargeBuffer buffer_;
  std::byte* memory_;  // of the buffer, or of the lender
};

}  // namespace numaserve
