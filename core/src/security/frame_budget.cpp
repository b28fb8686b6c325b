// SPDX-License-Identifier: Apache-2.0
#include "security/frame_budget.hpp"

namespace backplane::core {

bool FrameBudget::admit(Frame& frame, Time now) {
  Pool& pool = pools_[frame.pool];
  if (pool.bytes + frame.size > pool.max_bytes) return false;
  pool.bytes += frame.size;
  frame.admitted = true;
  frame.begin = now;
  return true;
}

bool FrameBudget::begin(ConnectionId connection, size_t size, Time now) {
  const size_t counted = size <= limits_.free_bytes ? 0 : size;
  const size_t pool = size > limits_.large_bytes ? 1 : 0;
  const auto [entry, fresh] = frames_.emplace(connection, Frame{.size = counted, .pool = pool});
  if (!fresh) return entry->second.admitted;
  auto& waiting = pools_[pool].waiting;
  if ((counted == 0 || waiting.empty()) && admit(entry->second, now)) return true;
  waiting.push_back(connection);
  return false;
}

std::vector<ConnectionId> FrameBudget::finish(ConnectionId connection, Time now) {
  std::vector<ConnectionId> admitted;
  const auto finished = frames_.find(connection);
  if (finished == frames_.end()) return admitted;
  Pool& pool = pools_[finished->second.pool];
  if (finished->second.admitted) pool.bytes -= finished->second.size;
  frames_.erase(finished);
  while (!pool.waiting.empty()) {
    const auto next = frames_.find(pool.waiting.front());
    if (next != frames_.end()) {  // else it was closed while it waited
      if (!admit(next->second, now)) break;
      admitted.push_back(next->first);
    }
    pool.waiting.pop_front();
  }
  return admitted;
}

std::vector<ConnectionId> FrameBudget::slow(Time now, const std::function<size_t(ConnectionId)>& arrived) const {
  std::vector<ConnectionId> slow;
  for (const auto& [connection, frame] : frames_) {
    if (!frame.admitted || now - frame.begin <= limits_.grace) continue;
    const std::chrono::duration<double> late = now - frame.begin - limits_.grace;
    const double expected = late.count() * static_cast<double>(limits_.bytes_per_second);
    if (static_cast<double>(arrived(connection)) <= expected) slow.push_back(connection);
  }
  return slow;
}

std::vector<ConnectionId> FrameBudget::waiting() const {
  std::vector<ConnectionId> connections;
  for (const Pool& pool : pools_) connections.insert(connections.end(), pool.waiting.begin(), pool.waiting.end());
  return connections;
}

void FrameBudget::restart(Time now) {
  for (auto& [connection, frame] : frames_) frame.begin = now;
}

}  // namespace backplane::core
