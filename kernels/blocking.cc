#include "kernels/blocking.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

namespace numaserve {
namespace {

// Limits: a slab holds whole groups of weights, and the totals of its groups fit the scratch.
constexpr int64_t kLeastSlab = 8, kMostSlab = 256, kLeastBlock = 4, kMostBlock = 32, kLeastFew = 2;

// What the first level holds besides weights while copied activations pass by: the sums of 64 rows, and results.
constexpr int64_t kBesideCopied = 2 * 32 * 32 * 4 + 2048;

// Pairs of panels that make up for copying activations. Measured with AMX, 256 rows, speed in place divided by speed
// with copies: 2 pairs 1.27-1.45, 4 pairs 1.15-1.29, 8 pairs 1.01-1.2, 11 pairs 0.95-1.14, 16 pairs 0.95-1.08, 24 pairs
// 0.83-1.01.
constexpr int64_t kLeastCopiedPairs = 12;

struct Field {
  const char* name;
  int64_t Blocking::* member;
};
constexpr Field kFields[] = {
    {"group_panels", &Blocking::group_panels},
    {"slab_tiles", &Blocking::slab_tiles},
    {"block_tiles", &Blocking::block_tiles},
    {"few_tiles", &Blocking::few_tiles},
    {"few_rows", &Blocking::few_rows},
    {"copied_tiles", &Blocking::copied_tiles},
    {"streamed_bytes", &Blocking::streamed_bytes},
    {"row_block", &Blocking::row_block},
    {"least_copied_pairs", &Blocking::least_copied_pairs},
};
static_assert(sizeof(Blocking) == std::size(kFields) * sizeof(int64_t), "every field must have a name");

constexpr int64_t kFewRows = 36;  // three passes of packed rows

// Sizes that `bench kernels --sweep` found faster than the sizes computed from the caches; zero: as computed.
struct Found {
  std::string_view isa, vendor;
  unsigned family;
  int64_t row_block, slab_tiles, block_tiles, few_tiles, few_rows;
};
constexpr Found kFound[] = {
    // Zen 4 (no other processor of this family has AVX-512). Blocks of 4 tiles up to 36 rows, compared with blocks of
    // 8, at M of 16, 32, 64 and 256, K = 2048, one core: bf16 0, +4, +2, +2 %; int8 +1, +3, +4, +3 %; int8 in groups of
    // 32 +7, +11, +7, +6 %; int4 times int8 +4, +4, +4, +3 %. Reading weights from the second level costs less than
    // loading and storing results more often. But with 16 rows blocks of 16 tiles lose 10 %.
    {"avx512", "AuthenticAMD", 25, kRowBlock, 0, 32, 4, 16},
    // Xeons with AMX, measured with caches of 48 KiB and 2 MiB. Blocks of 4 tiles, compared with blocks of 8, at M of
    // 48 and 64, K = 2048, one core: +14, +15 %. At M of 96 and more, blocks of 4 to 7 are no better and blocks of 12
    // to 32 are worse. Slabs of 32 tiles, compared with slabs of 64, M = 512, K of 8192 and 14336: bf16 +10 to +20 %,
    // int8 +4 to +12 %; slabs of 13 to 26 are 2 to 8 % slower than slabs of 32. K = 2048: output projection of
    // Llama-1B +8 to +23 %, gate and up -2 to +11 %. Row blocks of 512 rows, compared with 256, M = 512: +7 to +14 %
    // together with results that are finished during the next pair, -2 to +10 % without.
    {"amx", "GenuineIntel", 6, kMostRowBlock, 32, 8, 4, 64},
};

}  // namespace

Blocking blocking_for(const KernelTable& table, const CacheSizes& caches, const Processor& processor) {
  constexpr int64_t kPanelBytes = kRowBlock * kTileN * 4, kRowBytes = kRowBlock * kLineBytes;
  const FirstLevelUse& use = table.first_level;
  const int64_t room = caches.l1d * use.quarters / 4 - use.other_bytes;
  const int64_t block = std::clamp<int64_t>(room / use.tile_bytes, kLeastBlock, kMostBlock);
  Blocking result{.group_panels = std::clamp<int64_t>(caches.l2 / kPanelBytes / 2 * 2, 2, kMostPanels),
                  .slab_tiles = std::clamp<int64_t>(caches.l2 / 2 / kRowBytes, kLeastSlab, kMostSlab),
                  .block_tiles = block,
                  .few_tiles = block / 2,
                  .few_rows = kFewRows,
                  .copied_tiles = std::clamp<int64_t>(
                      (caches.l1d * use.quarters / 4 - kBesideCopied) / (2 * kTileBytes), kLeastBlock, kMostBlock),
                  .streamed_bytes = caches.l2 / 2,
                  .row_block = kRowBlock,
                  .least_copied_pairs = kLeastCopiedPairs};
  for (const Found& found : kFound)
    if (found.isa == table.name && found.vendor == processor.vendor && found.family == processor.family) {
      result.row_block = found.row_block;
      if (found.slab_tiles > 0) result.slab_tiles = found.slab_tiles;
      result.block_tiles = found.block_tiles;
      result.few_tiles = found.few_tiles;
      result.few_rows = found.few_rows;
    }
  return result;
}

const Blocking& checked(const Blocking& blocking) {
  const auto between = [](int64_t value, int64_t least, int64_t most) { return least <= value && value <= most; };
  if (!between(blocking.group_panels, 2, kMostPanels) || blocking.group_panels % 2 != 0)
    throw std::invalid_argument("matrix blocking: a group must have an even number of panels, 2 to " +
                                std::to_string(kMostPanels));
  if (!between(blocking.slab_tiles, kLeastSlab, kMostSlab) || !between(blocking.block_tiles, kLeastBlock, kMostBlock))
    throw std::invalid_argument("matrix blocking: a slab must have 8 to 256 k tiles, and a block 4 to 32");
  if (!between(blocking.few_tiles, kLeastFew, kMostBlock) || !between(blocking.few_rows, 0, kRowBlock))
    throw std::invalid_argument(
        "matrix blocking: a small batch must have at most 256 rows, and its blocks 2 to 32 k tiles");
  if (!between(blocking.copied_tiles, kLeastBlock, kMostBlock))
    throw std::invalid_argument("matrix blocking: a block for copied activations must have 4 to 32 k tiles");
  if (blocking.streamed_bytes < 0)
    throw std::invalid_argument("matrix blocking: the size of results that are not streamed must not be negative");
  if (!between(blocking.row_block, kRowUnit, kMostRowBlock) || blocking.row_block % kRowUnit != 0)
    throw std::invalid_argument("matrix blocking: a row block must have whole groups of 32 rows, 32 to 512 rows");
  if (blocking.least_copied_pairs < 0)
    throw std::invalid_argument("matrix blocking: the least pairs of panels that are copied for must not be negative");
  return blocking;
}

NamedSizes named_sizes(const Blocking& blocking) {
  NamedSizes sizes;
  for (const Field& field : kFields) sizes[field.name] = blocking.*field.member;
  return sizes;
}

Blocking blocking_of(const NamedSizes& sizes) {
  Blocking blocking{};
  std::string names;
  bool complete = sizes.size() == std::size(kFields);
  for (const Field& field : kFields) {
    names += (names.empty() ? "" : ", ") + std::string(field.name);
    const auto found = sizes.find(field.name);
    if (found == sizes.end())
      complete = false;
    else
      blocking.*field.member = found->second;
  }
  if (!complete) throw std::invalid_argument("matrix blocking: expected a size for each of " + names);
  return blocking;
}

}  // namespace numaserve
