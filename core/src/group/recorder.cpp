// SPDX-License-Identifier: Apache-2.0
#include "group/recorder.hpp"

#include <algorithm>

namespace backplane::core {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;  // orders the second read of the number after the fields

}  // namespace

// Nothing if the entry is not that of `number`, or is overwritten meanwhile.
std::optional<Recorder::Entry> Recorder::read(const Slot& slot, uint64_t number, const TickClock::Reading& now) const {
  const auto ns = [this, &now](int64_t ticks) { return ticks == 0 ? 0 : clock_.monotonic_ns(ticks, now); };
  if (slot.number.load(kAcquire) != number) return std::nullopt;
  const uint32_t what = slot.what.load(kAcquire);
  const Entry entry = {number,
                       slot.seq.load(kAcquire),
                       slot.count.load(kAcquire),
                       slot.tag.load(kAcquire),
                       what & 0xff,
                       what >> 8 & 0xff,
                       what >> 16,
                       slot.rank.load(kAcquire),
                       slot.status.load(kAcquire),
                       ns(slot.begin.load(kAcquire)),
                       ns(slot.end.load(kAcquire))};
  if (slot.number.load(kAcquire) != number) return std::nullopt;
  return entry;
}

std::vector<Recorder::Entry> Recorder::entries() const {
  std::vector<Entry> result;
  const TickClock::Reading now = clock_.read();
  const uint64_t end = next_.load(kAcquire);
  for (uint64_t number = end - std::min(end, kEntries); number < end; ++number) {
    if (const std::optional<Entry> entry = read(slots_[number % kEntries], number, now)) result.push_back(*entry);
  }
  return result;
}

std::optional<Recorder::Entry> Recorder::find_collective(uint64_t seq) const {
  const uint64_t number = kept_.number.load(kAcquire);
  const std::optional<Entry> kept = read(kept_, number, clock_.read());
  if (number != kNoNumber && kept && kept->seq == seq) return kept;
  for (const Entry& entry : entries()) {
    if (entry.kind != BP_SEND && entry.kind != BP_RECV && entry.seq == seq) return entry;
  }
  return std::nullopt;
}

}  // namespace backplane::core
