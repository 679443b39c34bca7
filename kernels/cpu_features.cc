#include "kernels/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace numaserve {
namespace {

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  CpuidLeaf(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

bool bit(unsigned value, int index) { return (value >> index) & 1; }

uint64_t xcr0() {
  if (!bit(CpuidLeaf(1, 0).ecx, 27)) return 0;  // OSXSAVE
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Linux grants the 8 KiB tile state only on request. The permission is per process, is inherited by threads created
// later, and is cleared by exec. It is therefore requested at the first probe, before any team exists.
bool request_tile_permission() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

// Whether an emulator executes AMX instructions: tests of the amx set, built with this option, run on any processor.
bool emulates_amx() {
#if defined(NUMASERVE_EMULATED_AMX)
  return std::getenv("NUMASERVE_EMULATED_AMX") != nullptr;
#else
  return false;
#endif
}

struct Features {
  bool portable, avx512, amx;
};

Features probe() {
  const CpuidLeaf leaf1(1, 0), leaf7(7, 0), leaf71(7, 1);
  const uint64_t state = xcr0();
  Features f{};
  const bool ymm = (state & 0x6) == 0x6;
  f.portable = ymm && bit(leaf1.ecx, 12) && bit(leaf1.ecx, 29) && bit(leaf7.ebx, 5);  // FMA, F16C, AVX2
  const bool zmm = (state & 0xe6) == 0xe6;
  f.avx512 = f.portable && zmm && bit(leaf7.ebx, 16) && bit(leaf7.ebx, 17) && bit(leaf7.ebx, 30) &&
             bit(leaf7.ebx, 31) && bit(leaf7.ecx, 1) && bit(leaf7.ecx, 11) &&
             bit(leaf71.eax, 5);  // F, DQ, BW, VL, VBMI, VNNI, BF16
  const bool tiles = (state & 0x60000) == 0x60000 && bit(leaf7.edx, 24) && bit(leaf7.edx, 22) && bit(leaf7.edx, 25);
  f.amx = f.avx512 && (emulates_amx() || (tiles && request_tile_permission()));
  return f;
}

const Features& features() {
  static const Features probed = probe();
  return probed;
}

struct Entry {
  std::string_view name;
  const KernelTable* table;  // null: this build lacks the set
  bool supported;            // by the processor and Linux

  bool available() const { return table != nullptr && supported; }
};

#if defined(NUMASERVE_HAS_AMX)
constexpr const KernelTable* kBuiltAmx = &kAmxTable;
#else
constexpr const KernelTable* kBuiltAmx = nullptr;
#endif
#if defined(NUMASERVE_HAS_AVX512)
constexpr const KernelTable* kBuiltAvx512 = &kAvx512Table;
#else
constexpr const KernelTable* kBuiltAvx512 = nullptr;
#endif
#if defined(NUMASERVE_HAS_AMX_EMULATED)
constexpr const KernelTable* kBuiltAmxEmulated = &kAmxEmulatedTable;
#else
constexpr const KernelTable* kBuiltAmxEmulated = nullptr;
#endif

std::vector<Entry> entries() {
  const Features& f = features();
  return {{"amx", kBuiltAmx, f.amx},
          {"avx512", kBuiltAvx512, f.avx512},
          {"portable", &kPortableTable, f.portable},
          {"amx_emulated", kBuiltAmxEmulated, f.avx512}};
}

std::string built_names() {
  std::string names;
  for (const Entry& entry : entries())
    if (entry.table != nullptr) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Entry& entry : entries())
    if (entry.available()) names.emplace_back(entry.name);
  return names;
}

std::string unbuilt_isa() {
  for (const Entry& entry : entries()) {
    if (entry.available()) break;
    if (entry.supported) return std::string(entry.name);
  }
  return "";
}

const KernelTable* table_by_name(std::string_view name) {
  for (const Entry& entry : entries()) {
    if (name != entry.name) continue;
    if (entry.table == nullptr)
      throw std::runtime_error("the instruction set '" + std::string(name) + "' is not built; this installation has " +
                               built_names() + "; unset NUMASERVE_ISA, or install a build with that set");
    if (!entry.supported)
      throw std::runtime_error("the processor or the kernel does not support the instruction set '" +
                               std::string(name) + "'; unset NUMASERVE_ISA to use the best available one");
    return entry.table;
  }
  throw std::invalid_argument("unknown instruction set '" + std::string(name) +
                              "'; set NUMASERVE_ISA to amx, avx512, portable or amx_emulated");
}

const KernelTable* default_table() {
  if (const char* forced = std::getenv("NUMASERVE_ISA"); forced != nullptr && *forced != '\0')
    return table_by_name(forced);
  const std::vector<std::string> names = available_isas();
  if (names.empty()) throw std::runtime_error("numaserve needs a processor with AVX2, FMA and F16C");
  return table_by_name(names.front());
}

const Processor& processor() {
  static const Processor found = [] {
    const CpuidLeaf leaf0(0, 0), leaf1(1, 0);
    std::string vendor;
    for (const unsigned part : {leaf0.ebx, leaf0.edx, leaf0.ecx})
      for (int byte = 0; byte < 4; ++byte) vendor += static_cast<char>(part >> 8 * byte & 0xff);
    const unsigned base = leaf1.eax >> 8 & 0xf, extended = leaf1.eax >> 20 & 0xff;
    return Processor{std::move(vendor), base == 0xf ? base + extended : base};
  }();
  return found;
}

const CacheSizes& cache_sizes() {
  static const CacheSizes sizes = [] {
    const long l1d = sysconf(_SC_LEVEL1_DCACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return CacheSizes{l1d > 0 ? l1d : 32 << 10, l2 > 0 ? l2 : 1 << 20};
  }();
  return sizes;
}

}  // namespace numaserve
