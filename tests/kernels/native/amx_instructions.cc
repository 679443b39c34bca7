#include "tests/kernels/native/amx_instructions.h"

#include <immintrin.h>

#include <atomic>
#include <cstring>
#include <thread>

namespace numaserve {
namespace {

struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // Tile 0 for results, 1 and 2 for operands.
  static Configuration of(int rows, int columns, int depth) {
    Configuration c;
    c.set(0, rows, columns);
    c.set(1, rows, depth);
    c.set(2, depth, columns);
    return c;
  }
  void set(int tile, int height, int words) {
    rows[tile] = static_cast<uint8_t>(height);
    row_bytes[tile] = static_cast<uint16_t>(4 * words);
  }
  // The intrinsic's operand is 8 bytes for gcc 12; see tiles_hardware.h.
  void load() const { __asm__ volatile("ldtilecfg %0" ::"m"(*this)); }
};

// Loads a whole configuration that `change` has spoiled.
template <class Change>
void load_spoiled(Change change) {
  Configuration c = Configuration::of(16, 16, 16);
  change(c);
  c.load();
}

void without_configuration() {
  _tile_release();
  _tile_zero(0);
}
// The thread is there before the configuration is: a new one has that of the thread which starts it.
void on_another_thread() {
  std::atomic<bool> loaded = false;
  std::thread other([&loaded] {
    loaded.wait(false);
    _tile_zero(0);
  });
  Configuration::of(16, 16, 16).load();
  loaded = true;
  loaded.notify_all();
  other.join();
}
void with_a_tile_without_shape() {
  Configuration::of(16, 16, 16).load();
  _tile_zero(5);
}
void with_17_rows() {
  load_spoiled([](Configuration& c) { c.set(3, 17, 1); });
}
void with_68_bytes() {
  load_spoiled([](Configuration& c) { c.set(3, 1, 17); });
}
void with_rows_without_columns() {
  load_spoiled([](Configuration& c) { c.set(3, 1, 0); });
}
void with_a_ninth_tile() {
  load_spoiled([](Configuration& c) { c.set(8, 1, 1); });
}
void with_another_palette() {
  load_spoiled([](Configuration& c) { c.palette = 2; });
}
void with_reserved_bytes() {
  load_spoiled([](Configuration& c) { c.reserved[3] = 1; });
}
void with_half_a_word() {
  load_spoiled([](Configuration& c) { c.row_bytes[0] = 62; });
  _tile_dpbf16ps(0, 1, 2);
}
void with_another_depth() {
  load_spoiled([](Configuration& c) { c.set(2, 15, 16); });
  _tile_dpbssd(0, 1, 2);
}
void with_other_rows() {
  load_spoiled([](Configuration& c) { c.set(1, 15, 16); });
  _tile_dpbsud(0, 1, 2);
}
void with_other_columns() {
  load_spoiled([](Configuration& c) { c.set(0, 16, 15); });
  _tile_dpbf16ps(0, 1, 2);
}
void with_one_tile_twice() {
  Configuration::of(16, 16, 16).load();
  __asm__ volatile(".byte 0xc4, 0xe2, 0x6b, 0x5e, 0xc0");  // tdpbssd tmm0, tmm0, tmm2: no assembler takes it
}

}  // namespace

const TileFault kTileFaults[] = {
    {"without_configuration", without_configuration},
    {"on_another_thread", on_another_thread},
    {"with_a_tile_without_shape", with_a_tile_without_shape},
    {"with_17_rows", with_17_rows},
    {"with_68_bytes", with_68_bytes},
    {"with_rows_without_columns", with_rows_without_columns},
    {"with_a_ninth_tile", with_a_ninth_tile},
    {"with_another_palette", with_another_palette},
    {"with_reserved_bytes", with_reserved_bytes},
    {"with_half_a_word", with_half_a_word},
    {"with_another_depth", with_another_depth},
    {"with_other_rows", with_other_rows},
    {"with_other_columns", with_other_columns},
    {"with_one_tile_twice", with_one_tile_twice},
};
const size_t kNumTileFaults = sizeof(kTileFaults) / sizeof(kTileFaults[0]);

void multiply_tiles(TileKind kind, const TileProduct& p) {
  Configuration::of(p.rows, p.columns, p.depth).load();
  __asm__ volatile("" ::: "memory");  // gcc's tile loads do not say that they read memory
  _tile_loadd(0, p.c, 4 * p.columns);
  _tile_loadd(1, p.a, 4 * p.depth);
  _tile_stream_loadd(2, p.b, 4 * p.columns);
  switch (kind) {
    case TileKind::kBf16:
      _tile_dpbf16ps(0, 1, 2);
      break;
    case TileKind::kSignedSigned:
      _tile_dpbssd(0, 1, 2);
      break;
    case TileKind::kSignedUnsigned:
      _tile_dpbsud(0, 1, 2);
      break;
    case TileKind::kUnsignedSigned:
      _tile_dpbusd(0, 1, 2);
      break;
    case TileKind::kUnsignedUnsigned:
      _tile_dpbuud(0, 1, 2);
  }
  _tile_stored(0, p.c, 4 * p.columns);
  _tile_release();
}

bool keeps_its_configuration() {
  const Configuration loaded = Configuration::of(5, 7, 9);
  Configuration stored;
  loaded.load();
  __asm__ volatile("sttilecfg %0" : "=m"(stored));
  _tile_release();
  return std::memcmp(&loaded, &stored, sizeof(loaded)) == 0;
}

}  // namespace numaserve
