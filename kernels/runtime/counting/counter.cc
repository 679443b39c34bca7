#include "kernels/runtime/counting/counter.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace numaserve {
namespace {

thread_local Counter* active = nullptr;

}  // namespace

void Counter::begin(const Team& team, const ring::Ring* ring) {
  active = this;
  team_ = &team;
  lanes_.clear();
  for (int thread = 0; thread < team.size(); ++thread) lanes_.emplace_back(*this, thread);
  if (ring == nullptr) return;
  ring_begin_ = ring->base();
  ring_end_ = ring_begin_ + ring->layout().total_bytes();
  const ring::Ring::Range own = ring->part_range(ring->rank());
  own_begin_ = ring_begin_ + own.offset;
  own_end_ = own_begin_ + own.bytes;
}

void Counter::enter(size_t node, int thread) {
  Lane& lane = lanes_[static_cast<size_t>(thread)];
  lane.node_ = node;
  lane.add({});  // threads meet after a node that has nothing to do, too
}

bool Counter::is_remote(const void* from) const {
  const auto* at = static_cast<const std::byte*>(from);
  return at >= ring_begin_ && at < ring_end_ && !(at >= own_begin_ && at < own_end_);
}

std::vector<CountedPhase> Counter::phases() const {
  using Key = std::pair<uint64_t, size_t>;  // barriers before it, and the node
  std::map<Key, CountedPhase> phases;
  std::map<Key, std::map<int64_t, Work>> items;
  for (const Lane& lane : lanes_)
    for (const Lane::Entry& entry : lane.entries_) {
      const Key key{entry.barriers, entry.node};
      CountedPhase& phase = phases[key];
      phase.node = entry.node;
      phase.threads.resize(lanes_.size());
      (entry.item < 0 ? phase.threads[static_cast<size_t>(lane.thread_)] : items[key][entry.item]).add(entry.work);
    }
  std::vector<CountedPhase> found;
  for (auto at = phases.begin(); at != phases.end(); ++at) {
    CountedPhase& phase = found.emplace_back(std::move(at->second));
    for (const auto& [number, work] : items[at->first]) phase.items.push_back(work);
    const auto next = std::next(at);
    phase.joins_next = next != phases.end() && next->first.first == at->first.first;
  }
  return found;
}

Lane& Lane::current() { return active->lanes_[static_cast<size_t>(active->team_->turn())]; }

void Lane::add(const Work& work, int64_t item) {
  const uint64_t barriers = counter_.team_->barriers(thread_);
  if (!entries_.empty() && entries_.back().item == item && entries_.back().barriers == barriers &&
      entries_.back().node == node_)
    return entries_.back().work.add(work);
  entries_.push_back({barriers, node_, item, work});
}

}  // namespace numaserve
