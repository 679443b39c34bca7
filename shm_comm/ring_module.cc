// numaserve.shm_comm._ring: the Python binding of the ring, the mask board and the progress board. segment.py creates
// segments and passes descriptors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "shm_comm/include/numaserve_progress.h"
#include "shm_comm/include/numaserve_ring_collectives.h"
#include "shm_comm/include/numaserve_ring_inspect.h"
#include "shm_comm/mapping.h"
#include "shm_comm/mask_module.h"
#include "shm_comm/progress_module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve::ring {
namespace {

using MappedRing = Mapped<Ring>;

void format_descriptor(int fd, std::uint32_t world, std::uint32_t lanes, std::uint64_t slot_bytes,
                       std::uint64_t nonce) {
  const Layout layout{.world = world, .lanes = lanes, .slot_bytes = slot_bytes};
  layout.validate();
  const Mapping mapping = map_fresh("ring", fd, layout.total_bytes());
  format_segment(mapping.base(), layout, nonce);
}

std::uint64_t segment_bytes(std::uint32_t world, std::uint32_t lanes, std::uint64_t slot_bytes) {
  const Layout layout{.world = world, .lanes = lanes, .slot_bytes = slot_bytes};
  layout.validate();
  return layout.total_bytes();
}

bool abort_descriptor(int fd, const std::string& reason) {
  const Mapping mapping("ring", fd, PROT_READ | PROT_WRITE);
  read_layout(mapping.base(), mapping.bytes());
  return abort_segment(*static_cast<Header*>(mapping.base()), AbortNote{}, reason);
}

Snapshot inspect_descriptor(int fd) {
  const Mapping mapping("ring", fd, PROT_READ);
  return inspect_segment(mapping.base(), mapping.bytes());
}

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

// Runs a collective at the ring's position, with the GIL released, and advances the position.
template <class Collective>
void run(Ring& ring, Collective collective) {
  Status status = Status::ok;
  {
    nb::gil_scoped_release release;
    std::uint64_t n = ring.position();
    status = collective(Channel::whole(ring), n);
    ring.set_position(n);
  }
  ring.check(status);
}

void py_all_reduce(Ring& ring, const Floats& array, std::optional<std::size_t> one_shot_bytes) {
  run(ring, [&](const Channel& channel, std::uint64_t& n) {
    return all_reduce_f32(channel, n, array.data(), array.size(), one_shot_bytes.value_or(kOneShotBytes));
  });
}

void py_all_gather(Ring& ring, const ConstBytes& mine, const Bytes& out) {
  const auto world = static_cast<std::size_t>(ring.world());
  if (out.nbytes() != world * mine.nbytes()) {
    throw nb::value_error("all_gather: `out` must have world_size times the bytes of `mine`");
  }
  const std::vector<std::size_t> sizes(world, mine.nbytes());
  run(ring, [&](const Channel& channel, std::uint64_t& n) {
    return all_gather(channel, n, static_cast<const std::byte*>(mine.data()), sizes,
                      static_cast<std::byte*>(out.data()));
  });
}

void py_broadcast(Ring& ring, const Bytes& data, int root) {
  if (root < 0 || root >= ring.world()) throw nb::value_error("broadcast: the root rank is out of range");
  run(ring, [&](const Channel& channel, std::uint64_t& n) {
    return broadcast(channel, n, static_cast<std::byte*>(data.data()), data.nbytes(), root);
  });
}

void py_barrier(Ring& ring) {
  run(ring, [](const Channel& channel, std::uint64_t& n) { return barrier(channel, n); });
}

void set_deadline_seconds(Ring& ring, double seconds) {
  if (!(seconds > 0 && seconds <= 86400))
    throw nb::value_error("ring: the deadline must be above 0 and at most 86400 s");
  ring.set_deadline(static_cast<std::uint64_t>(seconds * 1e9));
}

int checked_index(int value, int end, const char* message) {
  if (value < 0 || value >= end) throw nb::index_error(message);
  return value;
}

void bind_errors(nb::module_& m) {
  // nanobind tries translators in reverse order of binding, so the base class must be bound first.
  auto base = nb::exception<Error>(m, "RingError", PyExc_RuntimeError);
  nb::exception<Aborted>(m, "RingAborted", base.ptr());
  nb::exception<DeadlineExceeded>(m, "RingDeadline", base.ptr());
}

void bind_ring(nb::module_& m) {
  nb::class_<Ring>(m, "RingBase");
  nb::class_<MappedRing, Ring>(m, "Ring")
      .def(
          "__init__",
          [](MappedRing* self, int fd, int rank, std::uint64_t nonce, std::optional<int> world_size) {
            new (self) MappedRing("ring", fd, rank, nonce, world_size.value_or(0));
          },
          "fd"_a, "rank"_a, "nonce"_a, "world_size"_a = nb::none())
      .def_prop_ro("rank", &Ring::rank)
      .def_prop_ro("world_size", &Ring::world)
      .def_prop_ro("lanes", &Ring::lanes)
      .def_prop_ro("slot_bytes", &Ring::slot_bytes)
      .def_prop_ro("nbytes", [](const Ring& ring) { return ring.layout().total_bytes(); })
      .def_prop_ro("base_address", [](const Ring& ring) { return reinterpret_cast<std::uintptr_t>(ring.base()); })
      .def_prop_ro("position", &Ring::position)
      .def_prop_ro("aborted", &Ring::aborted)
      .def(
          "part_range",
          [](const Ring& ring, int rank) {
            const auto range = ring.part_range(checked_index(rank, ring.world(), "ring: the rank is out of range"));
            return std::pair{range.offset, range.bytes};
          },
          "rank"_a)
      .def(
          "wait_ns",
          [](const Ring& ring, int lane) {
            return ring.wait_ns(checked_index(lane, ring.lanes(), "ring: the lane is out of range"));
          },
          "lane"_a)
      .def("set_deadline", &set_deadline_seconds, "seconds"_a)
      .def("share_cores", &Ring::share_cores)
      .def("leave_verdict", &Ring::leave_verdict, "lifeline"_a)
      .def("prefault", &Ring::prefault)
      .def("beat", &Ring::beat)
      .def(
          "abort", [](Ring& ring, const std::string& reason) { ring.abort(reason); }, "reason"_a)
      .def("all_reduce", &py_all_reduce, "array"_a.noconvert(), "one_shot_bytes"_a = nb::none())
      .def("all_gather", &py_all_gather, "mine"_a.noconvert(), "out"_a.noconvert())
      .def("broadcast", &py_broadcast, "data"_a.noconvert(), "root"_a)
      .def("barrier", &py_barrier);
}

void bind_inspection(nb::module_& m) {
  nb::class_<RankSnapshot>(m, "RankSnapshot")
      .def_ro("pid", &RankSnapshot::pid)
      .def_ro("arrived_min", &RankSnapshot::arrived_min)
      .def_ro("arrived_max", &RankSnapshot::arrived_max)
      .def_ro("done_min", &RankSnapshot::done_min)
      .def_ro("done_max", &RankSnapshot::done_max)
      .def_ro("waits", &RankSnapshot::waits)
      .def_ro("wait_seconds", &RankSnapshot::wait_seconds)
      .def_ro("wait_share", &RankSnapshot::wait_share)
      .def_ro("beat_age_seconds", &RankSnapshot::beat_age_seconds);
  nb::class_<Snapshot>(m, "RingSnapshot")
      .def_ro("world_size", &Snapshot::world)
      .def_ro("lanes", &Snapshot::lanes)
      .def_ro("slot_bytes", &Snapshot::slot_bytes)
      .def_ro("nbytes", &Snapshot::total_bytes)
      .def_ro("aborted", &Snapshot::aborted)
      .def_ro("abort_reason", &Snapshot::abort_reason)
      .def_ro("ranks", &Snapshot::ranks);
  m.def("inspect", &inspect_descriptor, "fd"_a);
}

}  // namespace

NB_MODULE(_ring, m) {
  bind_errors(m);
  bind_ring(m);
  bind_inspection(m);
  masks::bind_masks(m);
  progress::bind_progress(m);
  m.def("segment_bytes", &segment_bytes, "world_size"_a, "lanes"_a, "slot_bytes"_a);
  m.def("format_segment", &format_descriptor, "fd"_a, "world_size"_a, "lanes"_a, "slot_bytes"_a, "nonce"_a);
  m.def("abort_segment", &abort_descriptor, "fd"_a, "reason"_a);
}

}  // namespace numaserve::ring
