// SPDX-License-Identifier: Apache-2.0
#include "group/recorder.hpp"

#include <algorithm>

namespace backplane::core {

std::vector<Recorder::Entry> Recorder::entries() const {
  constexpr auto kAcquire = std::memory_order_acquire;  // keeps the second look at the number behind the fields
  std::vector<Entry> result;
  const TickClock::Reading now = clock_.read();
  const auto ns = [this, &now](int64_t ticks) { return ticks == 0 ? 0 : clock_.monotonic_ns(ticks, now); };
  const uint64_t end = next_.load(kAcquire);
  for (uint64_t number = end - std::min(end, kEntries); number < end; ++number) {
    const Slot& slot = slots_[number % kEntries];
    if (slot.number.load(kAcquire) != number) continue;
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
    if (slot.number.load(kAcquire) == number) result.push_back(entry);
  }
  return result;
}

}  // namespace backplane::core
