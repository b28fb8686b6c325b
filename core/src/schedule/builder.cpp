// SPDX-License-Identifier: Apache-2.0
#include "schedule/builder.hpp"

#include <algorithm>
#include <utility>

namespace backplane::core {

void Builder::send(int32_t peer, Region source) {
  if (source.count == 0) return;
  add({.kind = Step::Kind::kSend, .peer = peer, .target = {}, .source = source});
}

void Builder::recv(int32_t peer, Region target) {
  if (target.count == 0) return;
  add({.kind = Step::Kind::kRecv, .peer = peer, .target = target, .source = {}});
}

void Builder::copy(Region target, Region source) {
  if (target.count == 0) return;
  add({.kind = Step::Kind::kCopy, .peer = -1, .target = target, .source = source});
}

void Builder::reduce(Region target, Region source, Order order, bool completes) {
  if (target.count == 0) return;
  add({.kind = Step::Kind::kReduce,
       .peer = -1,
       .target = target,
       .source = source,
       .source_first = order == Order::kSourceFirst,
       .completes = completes});
}

void Builder::signal(int32_t to, int32_t from) {
  add({.kind = Step::Kind::kSend, .peer = to, .target = {}, .source = {}});
  add({.kind = Step::Kind::kRecv, .peer = from, .target = scratch(0, 0), .source = {}});
}

void Builder::end_round() {
  const uint32_t previous = schedule_.round_ends.empty() ? 0 : schedule_.round_ends.back();
  const auto end = static_cast<uint32_t>(schedule_.steps.size());
  if (end != previous) schedule_.round_ends.push_back(end);
}

Schedule Builder::finish() && {
  end_round();
  return std::move(schedule_);
}

void Builder::add(const Step& step) {
  reserve_scratch(step.target);
  reserve_scratch(step.source);
  schedule_.steps.push_back(step);
}

void Builder::reserve_scratch(const Region& region) {
  if (region.buffer != BufferRole::kScratch) return;
  schedule_.scratch_count = std::max(schedule_.scratch_count, region.offset + region.count);
}

}  // namespace backplane::core
