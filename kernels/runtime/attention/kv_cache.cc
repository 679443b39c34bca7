#include "kernels/runtime/attention/kv_cache.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

namespace numaserve {
namespace {

void check(const HeadGeometry& heads, KvDtype dtype) {
  const int32_t of_all_ranks = heads.lower + heads.q_heads + heads.higher;
  if (std::min({heads.q_heads, heads.kv_heads, heads.lower, heads.higher}) < 0 ||
      (heads.kv_heads > 0 ? of_all_ranks % heads.kv_heads : of_all_ranks) != 0)
    throw std::invalid_argument("the query heads of a rank's KV heads must be a multiple of these");
  if (heads.latent) {
    if (dtype != KvDtype::kBf16) throw std::invalid_argument("a KV cache of latents must be bf16");
    if (heads.kv_heads > 1 || heads.head_dim % kTileK != 0 || heads.values() % kTileK != 0 ||
        heads.head_dim <= heads.values())
      throw std::invalid_argument(
          "a KV cache of latents must have one head, whose latent and rotated parts are multiples of " +
          std::to_string(kTileK));
  }
  const int64_t most = heads.latent ? kMaxLatentDim : kMaxHeadDim;
  if (heads.head_tiles() * kTileK > most || heads.values() > kMaxHeadDim)
    throw std::invalid_argument("heads wider than " + std::to_string(most) + " are not supported");
}

// Checks that each window table has pages, and that all layers that use it have its window.
void check_tables(std::span<const CacheKind> kinds, std::span<const int64_t> table_pages) {
  for (size_t table = 1; table < table_pages.size(); ++table) {
    const auto uses = [&](const CacheKind& kind) { return kind.table == table; };
    const auto first = std::find_if(kinds.begin(), kinds.end(), uses);
    if (table_pages[table] < 1 || first == kinds.end() || first->window.tokens == 0)
      throw std::invalid_argument("a window table must have pages, and layers with a window");
    const Window window = first->window;
    if (window.bidirectional)
      throw std::invalid_argument("layers with bidirectional attention cannot have a window table");
    for (const CacheKind& kind : kinds)
      if (uses(kind) && (kind.window.tokens != window.tokens || kind.window.aligned != window.aligned))
        throw std::invalid_argument("layers that share a window table must have the same window");
  }
}

// Checks the kinds before memory is allocated for them.
std::vector<CacheKind> checked(std::vector<CacheKind> kinds, std::span<const int64_t> table_pages, KvDtype dtype) {
  for (const CacheKind& kind : kinds) {
    check(kind.heads, dtype);
    if (kind.layers < 0 || kind.window.tokens < 0)
      throw std::invalid_argument("the layers and the window of a kind of cache must not be negative");
    if (kind.table >= table_pages.size())
      throw std::invalid_argument("a kind of cache uses page table " + std::to_string(kind.table) + " of " +
                                  std::to_string(table_pages.size()));
  }
  check_tables(kinds, table_pages);
  return kinds;
}

}  // namespace

KvDtype kv_dtype(std::string_view name) {
  constexpr std::string_view kNames[] = {"bf16", "int8", "fp8_e4m3"};
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) throw std::invalid_argument("unknown KV cache data type " + std::string(name));
  return static_cast<KvDtype>(found - std::begin(kNames));
}

KvCache::KvCache(std::vector<CacheKind> kinds, std::span<const int64_t> table_pages, KvDtype dtype,
                 const KvCache* lender)
    : dtype_(dtype), kinds_(checked(std::move(kinds), table_pages, dtype)) {
  int64_t offset = 0;
  for (const auto& [heads, window, layers, table] : kinds_) {
    const int64_t head_stride = heads.page_bytes(dtype), page_stride = heads.kv_heads * head_stride;
    const int64_t values = kv_half_bytes(dtype, heads.head_tiles());
    layouts_.push_back({offset, values, head_stride, page_stride, table_pages[table] * page_stride, layers});
    offset += layers * layouts_.back().layer_stride;
  }
  if (lender != nullptr && (lender->dtype_ != dtype || lender->layouts_ != layouts_))
    throw std::invalid_argument("a KV cache can only be read by layers with the same keys, values and pages");
  if (lender == nullptr) buffer_ = LargeBuffer(static_cast<size_t>(offset));
  memory_ = lender == nullptr ? buffer_.data() : lender->memory_;
}

const CacheKind& KvCache::kind(const CacheIndex& index) const {
  if (index.kind < 0 || static_cast<size_t>(index.kind) >= kinds_.size())
    throw std::invalid_argument("there is no cache of kind " + std::to_string(index.kind));
  const CacheKind& found = kinds_[static_cast<size_t>(index.kind)];
  if (index.layer < 0 || index.layer >= found.layers)
    throw std::invalid_argument("layer " + std::to_string(index.layer) + " is out of range");
  return found;
}

KvLayer KvCache::layer(const CacheIndex& index) const {
  kind(index);
  const Layout& layout = layouts_[static_cast<size_t>(index.kind)];
  std::byte* base = memory_ + layout.offset + index.layer * layout.layer_stride;
  return {.dtype = dtype_,
          .k = base,
          .v = base + layout.values,
          .page_stride = layout.page_stride,
          .head_stride = layout.head_stride};
}

std::vector<std::span<std::byte>> KvCache::layers() const {
  std::vector<std::span<std::byte>> found;
  if (memory_ != buffer_.data()) return found;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const auto bytes = static_cast<size_t>(layouts_[i].layer_stride);
    std::byte* const base = memory_ + layouts_[i].offset;
    for (int64_t layer = 0; layer < kinds_[i].layers; ++layer)
      found.emplace_back(base + layer * layouts_[i].layer_stride, bytes);
  }
  return found;
}

}  // namespace numaserve
