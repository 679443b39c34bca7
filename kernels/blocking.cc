#include "kernels/blocking.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

namespace numaserve {
namespace {

// A slab holds whole groups of weights, and the totals of its groups have room; a block may be halved.
constexpr int64_t kLeastSlab = 8, kMostSlab = 256, kLeastBlock = 4, kMostBlock = 32;

constexpr const char *kLoads[] = {"before", "between", "streamed"}, *kPackings[] = {"never", "by_stride", "always"};

template <class Enum, size_t kCount>
Enum by_name(const char* const (&names)[kCount], std::string_view name) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) throw std::invalid_argument("there is no " + std::string(name) + " of tiles");
  return static_cast<Enum>(found - std::begin(names));
}

}  // namespace

Blocking blocking_for(const KernelTable& table, const CacheSizes& caches) {
  constexpr int64_t kPanelBytes = kRowBlock * kTileN * 4, kRowBytes = kRowBlock * kLineBytes;
  const FirstLevelUse& use = table.first_level;
  const int64_t room = caches.l1d * use.quarters / 4 - use.other_bytes;
  return {.group_panels = std::clamp<int64_t>(caches.l2 / kPanelBytes / 2 * 2, 2, kMostPanels),
          .slab_tiles = std::clamp<int64_t>(caches.l2 / 2 / kRowBytes, kLeastSlab, kMostSlab),
          .block_tiles = std::clamp<int64_t>(room / use.tile_bytes, kLeastBlock, kMostBlock)};
}

TileLoads tile_loads(std::string_view name) { return by_name<TileLoads>(kLoads, name); }
TilePacking tile_packing(std::string_view name) { return by_name<TilePacking>(kPackings, name); }
const char* name_of(TileLoads loads) { return kLoads[static_cast<size_t>(loads)]; }
const char* name_of(TilePacking packing) { return kPackings[static_cast<size_t>(packing)]; }

const Blocking& checked(const Blocking& blocking) {
  const auto between = [](int64_t value, int64_t least, int64_t most) { return least <= value && value <= most; };
  if (!between(blocking.group_panels, 2, kMostPanels) || blocking.group_panels % 2 != 0)
    throw std::invalid_argument("panels of a group are even, 2 to " + std::to_string(kMostPanels));
  if (!between(blocking.slab_tiles, kLeastSlab, kMostSlab) || !between(blocking.block_tiles, kLeastBlock, kMostBlock))
    throw std::invalid_argument("k tiles of a slab are 8 to 256, of a block 4 to 32");
  return blocking;
}

}  // namespace numaserve
