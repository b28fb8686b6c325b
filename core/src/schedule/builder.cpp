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
  signal_to(to);
  signal_from(from);
}

void Builder::signal_to(int32_t to) { add({.kind = Step::Kind::kSend, .peer = to, .target = {}, .source = {}}); }

void Builder::signal_from(int32_t from) {
  add({.kind = Step::Kind::kRecv, .peer = from, .target = scratch(0, 0), .source = {}});
}

void Builder::end_round() {
  const uint32_t previous = schedule_.round_ends.empty() ? 0 : schedule_.round_ends.back();
  const auto end = static_cast<uint32_t>(schedule_.steps.size());
  if (end != previous) schedule_.round_ends.push_back(end);
}

void Builder::append(const Schedule& part, const std::vector<int32_t>& ranks, const Placement& at, bool completes) {
  const auto placed = [&at](const Region& region) {
    switch (region.buffer) {
      case BufferRole::kInput:
        return Region{at.input.buffer, at.input.offset + region.offset, region.count};
      case BufferRole::kOutput:
        return Region{at.output.buffer, at.output.offset + region.offset, region.count};
      default:
        return scratch(at.scratch_at + region.offset, region.count);
    }
  };
  end_round();
  size_t next = 0;
  for (const uint32_t end : part.round_ends) {
    for (; next < end; ++next) {
      Step step = part.steps[next];
      if (step.peer >= 0) step.peer = ranks[static_cast<size_t>(step.peer)];
      step.target = placed(step.target);
      step.source = placed(step.source);
      step.completes = step.completes && completes;
      add(step);
    }
    end_round();
  }
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
