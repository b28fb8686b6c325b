// SPDX-License-Identifier: Apache-2.0
#include "schedule/simulator.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <string>

namespace backplane::core::testing {

namespace {

uint64_t mix(uint64_t left, uint64_t right) {  // the finisher of splitmix64
  uint64_t x = left * 0x9E3779B97F4A7C15u + right;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

struct Span {  // cells of a memory
  uint64_t begin = 0;
  uint64_t count = 0;
  bool overlaps(const Span& other) const {
    return count > 0 && other.count > 0 && begin < other.begin + other.count && other.begin < begin + count;
  }
};

struct Message {  // a posted send or recv
  Span span;
  uint64_t posted_at = 0;
  uint64_t sources = 0;  // send: the sources of the sender at that time
};

class Simulation {
 public:
  Simulation(const std::vector<Schedule>& schedules, std::vector<Memory>& memories, const std::vector<int32_t>& units)
      : schedules_(schedules),
        memories_(memories),
        units_(units),
        ranks_(schedules.size()),
        channels_(schedules.size() * schedules.size()) {}

  Traffic run();

 private:
  struct Rank {
    size_t round = 0;
    size_t pending = 0;  // messages of the round that have not ended
    uint64_t clock = 0;  // depth at which the round began
    uint64_t round_end = 0;
    uint64_t sources = 0;       // bit per rank, itself among them
    uint64_t next_sources = 0;  // the same with the messages of this round
    uint64_t messages = 0, sent = 0, received = 0;
  };
  struct Channel {  // from one rank to another; the oldest message first
    std::vector<Message> sends, recvs;
  };
  Channel& channel(int32_t from, int32_t to) {
    return channels_[static_cast<size_t>(from) * ranks_.size() + static_cast<size_t>(to)];
  }

  Span resolve(size_t rank, const Region& region) const;
  Span resolve_target(size_t rank, const Region& region) const;
  void check_written(size_t rank, Span span) const;
  void check_round(size_t rank, size_t begin, size_t end) const;
  void post_round(size_t rank);
  void post(size_t rank, const Step& step);
  void match(int32_t from, int32_t to);
  void finish_round(size_t rank);
  void run_local(size_t rank, const Step& step);
  [[noreturn]] void fail(size_t rank, const std::string& what) const {
    throw SimulationError("rank " + std::to_string(rank) + " round " + std::to_string(ranks_[rank].round) + ": " +
                          what);
  }
  size_t round_begin(size_t rank) const {
    return ranks_[rank].round == 0 ? 0 : schedules_[rank].round_ends[ranks_[rank].round - 1];
  }

  const std::vector<Schedule>& schedules_;
  std::vector<Memory>& memories_;
  const std::vector<int32_t>& units_;
  std::map<int32_t, uint64_t> left_, entered_;  // elements, by unit
  std::vector<Rank> ranks_;
  std::vector<Channel> channels_;
  std::deque<size_t> ready_;  // ranks with no message pending
  bool in_order_ = true;
};

bool communicates(const Step& step) { return step.kind == Step::Kind::kSend || step.kind == Step::Kind::kRecv; }

Span Simulation::resolve(size_t rank, const Region& region) const {
  const Memory& memory = memories_[rank];
  const auto within = [&](uint64_t at, uint64_t count) {
    if (region.offset > count || region.count > count - region.offset) fail(rank, "region beyond its buffer");
    return Span{at + region.offset, region.count};
  };
  switch (region.buffer) {
    case BufferRole::kInput:
      return within(memory.input_at, memory.input_count);
    case BufferRole::kOutput:
      return within(memory.output_at, memory.output_count);
    case BufferRole::kScratch:
      return within(memory.scratch_at, schedules_[rank].scratch_count);
  }
  fail(rank, "no such buffer");
}

// As the input is never a target, it is unwritten except where it is also the output.
Span Simulation::resolve_target(size_t rank, const Region& region) const {
  if (region.buffer == BufferRole::kInput) fail(rank, "input as a target");
  return resolve(rank, region);
}

void Simulation::check_written(size_t rank, Span span) const {
  for (uint64_t i = 0; i < span.count; ++i)
    if (memories_[rank].cells[span.begin + i].contributors == 0) fail(rank, "reads what was never written");
}

void Simulation::check_round(size_t rank, size_t begin, size_t end) const {
  const auto& steps = schedules_[rank].steps;
  if (begin >= end || end > steps.size()) fail(rank, "empty round");
  struct Use {
    Span span;
    bool target;
  };
  std::vector<Use> uses;
  bool local = false;
  for (size_t i = begin; i < end; ++i) {
    if (communicates(steps[i]) && local) fail(rank, "message after a local step");
    local = !communicates(steps[i]);
    if (local) continue;
    const bool target = steps[i].kind == Step::Kind::kRecv;
    uses.push_back({target ? resolve_target(rank, steps[i].target) : resolve(rank, steps[i].source), target});
  }
  for (size_t i = 0; i < uses.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if ((uses[i].target || uses[j].target) && uses[i].span.overlaps(uses[j].span))
        fail(rank, "recv target overlaps another region of its round");
}

void Simulation::post_round(size_t rank) {
  Rank& self = ranks_[rank];
  const size_t begin = round_begin(rank), end = schedules_[rank].round_ends[self.round];
  check_round(rank, begin, end);
  const auto& steps = schedules_[rank].steps;
  uint64_t sends = 0, recvs = 0;
  for (size_t i = begin; i < end; ++i) {
    if (steps[i].kind == Step::Kind::kSend) ++sends;
    if (steps[i].kind == Step::Kind::kRecv) ++recvs;
  }
  self.messages += std::max(sends, recvs);
  self.pending = sends + recvs;
  self.round_end = self.clock;
  if (self.pending == 0) ready_.push_back(rank);
  for (size_t i = begin; i < end && communicates(steps[i]); ++i) post(rank, steps[i]);
}

void Simulation::post(size_t rank, const Step& step) {
  const auto self = static_cast<int32_t>(rank);
  if (step.peer < 0 || step.peer >= static_cast<int32_t>(ranks_.size()) || step.peer == self) fail(rank, "bad peer");
  const uint64_t now = ranks_[rank].clock;
  if (step.kind == Step::Kind::kSend) {
    const Span span = resolve(rank, step.source);
    check_written(rank, span);
    channel(self, step.peer).sends.push_back({span, now, ranks_[rank].sources});
    match(self, step.peer);
  } else {
    channel(step.peer, self).recvs.push_back({resolve(rank, step.target), now, 0});
    match(step.peer, self);
  }
}

void Simulation::match(int32_t from, int32_t to) {
  Channel& between = channel(from, to);
  if (between.sends.empty() || between.recvs.empty()) return;
  const auto source = static_cast<size_t>(from), target = static_cast<size_t>(to);
  const Message sent = between.sends.front(), received = between.recvs.front();
  between.sends.erase(between.sends.begin());
  between.recvs.erase(between.recvs.begin());
  if (sent.span.count != received.span.count) fail(target, "sizes of a message differ");
  const auto cells = memories_[source].cells.begin() + static_cast<std::ptrdiff_t>(sent.span.begin);
  std::copy_n(cells, sent.span.count,
              memories_[target].cells.begin() + static_cast<std::ptrdiff_t>(received.span.begin));
  ranks_[source].sent += sent.span.count;
  if (!units_.empty() && units_[source] != units_[target]) {
    left_[units_[source]] += sent.span.count;
    entered_[units_[target]] += sent.span.count;
  }
  ranks_[target].received += sent.span.count;
  ranks_[target].next_sources |= sent.sources;
  const uint64_t end = 1 + std::max(sent.posted_at, received.posted_at);
  for (const size_t rank : {source, target}) {
    ranks_[rank].round_end = std::max(ranks_[rank].round_end, end);
    if (--ranks_[rank].pending == 0) ready_.push_back(rank);
  }
}

void Simulation::finish_round(size_t rank) {
  Rank& self = ranks_[rank];
  for (size_t i = round_begin(rank); i < schedules_[rank].round_ends[self.round]; ++i)
    if (!communicates(schedules_[rank].steps[i])) run_local(rank, schedules_[rank].steps[i]);
  self.clock = self.round_end;
  self.sources = self.next_sources;
  ++self.round;
  if (self.round < schedules_[rank].round_ends.size()) post_round(rank);
}

void Simulation::run_local(size_t rank, const Step& step) {
  const Span target = resolve_target(rank, step.target), source = resolve(rank, step.source);
  if (target.count != source.count || target.count == 0) fail(rank, "counts of a local step");
  const bool copy = step.kind == Step::Kind::kCopy;
  if (target.overlaps(source) && !(copy && target.begin == source.begin)) fail(rank, "local step overlaps itself");
  check_written(rank, source);
  if (!copy) check_written(rank, target);
  for (uint64_t i = 0; i < target.count; ++i) {
    Symbol& to = memories_[rank].cells[target.begin + i];
    const Symbol& from = memories_[rank].cells[source.begin + i];
    if (copy) {
      to = from;
      continue;
    }
    if ((to.contributors & from.contributors) != 0) fail(rank, "a contribution counts twice");
    if (to.index != from.index) fail(rank, "combines different elements");
    const Symbol& left = step.source_first ? from : to;
    const Symbol& right = step.source_first ? to : from;
    if (std::countl_zero(left.contributors) + std::countr_zero(right.contributors) < 64) in_order_ = false;
    to = {to.contributors | from.contributors, to.index,
          mix(std::min(to.expression, from.expression), std::max(to.expression, from.expression))};
    const bool is_complete = static_cast<size_t>(std::popcount(to.contributors)) == ranks_.size();
    if (step.completes != is_complete) fail(rank, "does not know whether a result is complete");
  }
}

Traffic Simulation::run() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].sources = ranks_[rank].next_sources = uint64_t{1} << rank;
    Memory& memory = memories_[rank];
    memory.scratch_at = memory.cells.size();
    memory.cells.resize(memory.cells.size() + schedules_[rank].scratch_count);
    const auto& ends = schedules_[rank].round_ends;
    if ((ends.empty() ? 0 : ends.back()) != schedules_[rank].steps.size()) fail(rank, "steps outside of rounds");
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (!schedules_[rank].round_ends.empty()) post_round(rank);
  while (!ready_.empty()) {
    const size_t rank = ready_.front();
    ready_.pop_front();
    finish_round(rank);
  }
  Traffic traffic;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Rank& self = ranks_[rank];
    if (self.round != schedules_[rank].round_ends.size()) fail(rank, "deadlock");
    traffic.messages = std::max(traffic.messages, self.messages);
    traffic.elements = std::max({traffic.elements, self.sent, self.received});
    traffic.depth = std::max(traffic.depth, self.clock);
    if (std::popcount(self.sources) != static_cast<int>(ranks_.size())) traffic.all_received_from_all = false;
  }
  for (size_t i = 0; i < channels_.size(); ++i)
    if (!channels_[i].sends.empty() || !channels_[i].recvs.empty()) fail(i / ranks_.size(), "message left over");
  traffic.in_order = in_order_;
  for (const auto& by_unit : {left_, entered_})
    for (const auto& [unit, elements] : by_unit) traffic.between = std::max(traffic.between, elements);
  return traffic;
}

}  // namespace

Symbol fresh_symbol(int32_t rank, uint64_t index) {
  return {uint64_t{1} << rank, index, mix(static_cast<uint64_t>(rank) + 1, index)};
}

Traffic simulate(const std::vector<Schedule>& schedules, std::vector<Memory>& memories,
                 const std::vector<int32_t>& units) {
  return Simulation(schedules, memories, units).run();
}

}  // namespace backplane::core::testing
