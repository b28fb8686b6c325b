// SPDX-License-Identifier: Apache-2.0
#include "pass.hpp"

namespace backplane::shm {
namespace {

// Bytes of each block in a step.
uint64_t stride_of(uint64_t size, uint64_t parts, bool from_one) {
  // Of what one rank alone shows the others copy one half while it shows the other one.
  const uint64_t most = from_one ? std::max((size + 1) / 2, kEagerLimit) : size;
  return part_of_slot(parts, std::min(most, size));
}

}  // namespace

void Collectives::pass(const Call& call, const Pattern& pattern) {
  const uint64_t parts = pattern.each ? static_cast<uint64_t>(world_size_) : 1;
  if (pattern.size * parts < Lending::kWorthIt) return pass_at_once(call, pattern);
  Passing(this, call, pattern).run();
}

// All of it in one step: nothing so small is lent.
void Collectives::pass_at_once(const Call& call, const Pattern& pattern) {
  if (pattern.size == 0) return;
  const uint64_t parts = pattern.each ? static_cast<uint64_t>(world_size_) : 1;
  const uint64_t shown = pattern.size * parts;
  const uint32_t step = steps_.begin(call.passage);
  std::byte* const place = steps_.mine(step, shown);
  for (uint64_t part = 0; pattern.shows(rank_) && part < parts; ++part) {
    if (pattern.each && static_cast<int32_t>(part) == rank_) continue;
    const Block block = pattern.mine(static_cast<int32_t>(part));
    copy(place + part * pattern.size, block.data, std::min(pattern.size, block.size));
  }
  steps_.show(step, call.passage);
  if (!pattern.reads(rank_)) return steps_.claim_next(shown);
  if (!pattern.each) copy(pattern.own.data, pattern.mine(0).data, std::min(pattern.size, pattern.own.size));
  const uint64_t before = pattern.each ? static_cast<uint64_t>(rank_) * pattern.size : 0;
  for (const int32_t from : others_) {
    if (!pattern.shows(from)) continue;
    const Room room = pattern.theirs(from);
    copy(room.data, steps_.see(from, step, shown, call.passage) + before, std::min(pattern.size, room.size));
  }
  if (pattern.each) copy(pattern.own.data, pattern.mine(rank_).data, std::min(pattern.size, pattern.own.size));
  if (pattern.shows(rank_)) steps_.claim_next(shown);
}

Collectives::Passing::Passing(Collectives* collectives, const Call& call, const Pattern& pattern)
    : all_(*collectives),
      call_(call),
      pattern_(pattern),
      parts_(pattern.each ? static_cast<uint64_t>(all_.world_size_) : 1),
      stride_(stride_of(pattern.size, pattern.each ? parts_ - 1 : 1, pattern.only_from >= 0)),
      may_lend_(pattern.size * parts_ >= Lending::kWorthIt),
      shows_(pattern.shows(all_.rank_)),
      reads_(pattern.reads(all_.rank_)) {}

void Collectives::Passing::run() {
  offer();
  uint32_t step = pattern_.size > 0 ? show(0) : 0;
  while (lends_ && copied_ < pattern_.own.size && !all_.steps_.has_shown(all_.others_.front(), step)) {
    copy_own(copied_ + kSlotSize);
    all_.check(call_);
  }
  for (uint64_t offset = 0; offset < pattern_.size; offset += stride_) {
    const uint32_t next = pattern_.size - offset > stride_ ? show(offset + stride_) : 0;
    if (reads_ || (may_lend_ && offset == 0)) read(step, offset);
    step = next;
    if (all_is_lent()) break;  // and has been read
  }
  all_.return_loans(call_, pattern_.only_to, [this] { copy_own(pattern_.own.size); });
  if (shows_ && !lends_) all_.steps_.claim_next(pattern_.each ? (parts_ - 1) * stride_ : stride_);
}

void Collectives::Passing::offer() {
  Lending& lending = all_.lending_;
  const Block& lends = pattern_.lends;
  if (may_lend_ && shows_) lending.offer(lends.data, nullptr, lends.size);
  if (pattern_.says_who_reads) lending.say_who_reads(pattern_.took, pattern_.only_from < 0);
  if (pattern_.in_process) lending.offer_in_process(lends.data, lends.size);
  if (pattern_.meets) lending.ask_to_meet();
  lends_ = lending.input(all_.rank_) != nullptr;
  // Until all have said that they can read in processes, or could have said so.
  asks_ = pattern_.says_who_reads && pattern_.only_from == all_.rank_ && lending.reads_processes() &&
          !lending.knows_all() && all_.questions_ > 0;
  if (asks_) --all_.questions_;
}

uint32_t Collectives::Passing::show(uint64_t offset) {
  const uint32_t step = all_.steps_.begin(call_.passage);
  if (may_lend_ && offset == 0) all_.lending_.show(step, call_.op.in_counts, call_.op.in_displs, call_.element);
  if (shows_ && !lends_) stage(step, offset);
  all_.steps_.show(step, call_.passage);
  return step;
}

void Collectives::Passing::stage(uint32_t step, uint64_t offset) {
  std::byte* const place = all_.steps_.mine(step, kSlotSize);
  for (uint64_t part = 0; part < parts_; ++part) {
    const auto to = static_cast<int32_t>(part);
    if (pattern_.each && to == all_.rank_) continue;
    const Block block = pattern_.mine(to);
    if (offset >= block.size) continue;
    copy(place + part_for(to, all_.rank_) * stride_, block.data + offset, std::min(stride_, block.size - offset));
  }
}

void Collectives::Passing::read(uint32_t step, uint64_t offset) {
  if (!pattern_.each) copy_own(offset + stride_);  // now, while it is in the cache
  for (const int32_t from : all_.others_) {
    if (asks_ && offset == 0) all_.lending_.hear(from, step, {}, call_.passage);
    if (pattern_.shows(from)) read_from(from, step, offset);
  }
}

void Collectives::Passing::read_from(int32_t from, uint32_t step, uint64_t offset) {
  const Room room = pattern_.theirs(from);
  if (may_lend_ && offset == 0) all_.lending_.hear(from, step, wanted(room.size), call_.passage);
  if (!reads_) return;
  const std::byte* const lent = all_.lending_.input(from);
  if (lent != nullptr && !pattern_.in_place) {
    if (offset == 0) all_.fetch(call_, from, room.data, lent, room.size);
    return;
  }
  const uint64_t before = pattern_.each ? part_for(all_.rank_, from) * stride_ : 0;  // bytes for others
  const std::byte* const place =
      lent != nullptr ? lent + offset : all_.steps_.see(from, step, kSlotSize, call_.passage) + before;
  if (offset >= room.size) return;
  all_.lending_.copy(from, room.data + offset, place, std::min(stride_, room.size - offset));
}

Lending::Wanted Collectives::Passing::wanted(uint64_t size) const {
  if (!reads_) return {};
  return {.size = size,
          .offset = pattern_.each && !call_.varies ? static_cast<uint64_t>(all_.rank_) * size : 0,
          .is_listed = pattern_.each && call_.varies,
          .in_process = pattern_.says_who_reads};
}

void Collectives::Passing::copy_own(uint64_t end) {
  end = std::min(end, pattern_.own.size);
  if (copied_ >= end) return;
  const std::byte* const from = pattern_.mine(pattern_.each ? all_.rank_ : 0).data;
  all_.fetch(call_, all_.rank_, pattern_.own.data + copied_, from + copied_, end - copied_);
  copied_ = end;
}

bool Collectives::Passing::all_is_lent() const {
  return pattern_.only_from < 0 ? all_.lending_.all_inputs() : all_.lending_.input(pattern_.only_from) != nullptr;
}

}  // namespace backplane::shm
