// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

namespace backplane::shm {
namespace {

// Bytes of each block per step.
uint64_t stride_of(uint64_t size, uint64_t parts, bool from_one) {
  // Data of a single rank pass in two halves: the others copy one while it publishes the next.
  const uint64_t max_size = from_one ? std::max((size + 1) / 2, kEagerLimit) : size;
  return part_of_slot(parts, std::min(max_size, size));
}

}  // namespace

void Collectives::exchange(const Call& call, const Pattern& pattern) {
  const uint64_t parts = pattern.each ? static_cast<uint64_t>(world_size_) : 1;
  if (pattern.size * parts < ZeroCopy::kMinBytes) return exchange_in_one_step(call, pattern);
  Exchange(this, call, pattern).run();
}

// Small data in one step, never exposed.
void Collectives::exchange_in_one_step(const Call& call, const Pattern& pattern) {
  if (pattern.size == 0) return;
  const uint64_t parts = pattern.each ? static_cast<uint64_t>(world_size_) : 1;
  const uint64_t published = pattern.size * parts;
  const uint32_t step = steps_.begin(call.context);
  std::byte* const slot = steps_.own_data(step, published);
  for (uint64_t part = 0; pattern.publishes(rank_) && part < parts; ++part) {
    if (pattern.each && static_cast<int32_t>(part) == rank_) continue;
    const Block block = pattern.mine(static_cast<int32_t>(part));
    copy(slot + part * pattern.size, block.data, std::min(pattern.size, block.size));
  }
  steps_.publish(step, call.context);
  if (!pattern.reads(rank_)) return steps_.prefetch_next(published);
  if (!pattern.each) copy(pattern.own.data, pattern.mine(0).data, std::min(pattern.size, pattern.own.size));
  const uint64_t before = pattern.each ? static_cast<uint64_t>(rank_) * pattern.size : 0;
  for (const int32_t from : others_) {
    if (!pattern.publishes(from)) continue;
    const OutputBlock room = pattern.theirs(from);
    copy(room.data, steps_.wait_for(from, step, published, call.context) + before, std::min(pattern.size, room.size));
  }
  if (pattern.each) copy(pattern.own.data, pattern.mine(rank_).data, std::min(pattern.size, pattern.own.size));
  if (pattern.publishes(rank_)) steps_.prefetch_next(published);
}

Collectives::Exchange::Exchange(Collectives* collectives, const Call& call, const Pattern& pattern)
    : all_(*collectives),
      call_(call),
      pattern_(pattern),
      parts_(pattern.each ? static_cast<uint64_t>(all_.world_size_) : 1),
      stride_(stride_of(pattern.size, pattern.each ? parts_ - 1 : 1, pattern.only_from >= 0)),
      is_active_(pattern.size * parts_ >= ZeroCopy::kMinBytes),
      publishes_(pattern.publishes(all_.rank_)),
      reads_(pattern.reads(all_.rank_)) {}

void Collectives::Exchange::run() {
  expose();
  uint32_t step = pattern_.size > 0 ? publish(0) : 0;
  while (exposes_ && copied_ < pattern_.own.size && !all_.steps_.has_published(all_.others_.front(), step)) {
    copy_own(copied_ + kSlotSize);
    all_.steps_.check(call_.context);
  }
  for (uint64_t offset = 0; offset < pattern_.size; offset += stride_) {
    const uint32_t next = pattern_.size - offset > stride_ ? publish(offset + stride_) : 0;
    if (reads_ || (is_active_ && offset == 0)) read(step, offset);
    step = next;
    if (all_is_exposed()) break;  // and has been read
  }
  all_.zero_copy_.finish(call_.context, pattern_.only_to, [this] { copy_own(pattern_.own.size); });
  if (publishes_ && !exposes_) all_.steps_.prefetch_next(pattern_.each ? (parts_ - 1) * stride_ : stride_);
}

void Collectives::Exchange::expose() {
  ZeroCopy& zero_copy = all_.zero_copy_;
  const Block& exposes = pattern_.exposes;
  if (is_active_ && publishes_) zero_copy.expose(exposes.data, nullptr, exposes.size);
  const bool in_process = pattern_.in_process && publishes_ && all_.cross_->limits().block(pattern_.size);
  if (in_process) zero_copy.expose_in_process(exposes.data, exposes.size);
  exposes_ = zero_copy.input(all_.rank_) != nullptr;
}

uint32_t Collectives::Exchange::publish(uint64_t offset) {
  const uint32_t step = all_.steps_.begin(call_.context);
  if (is_active_ && offset == 0) all_.zero_copy_.announce(step, call_.op.in_counts, call_.op.in_displs, call_.element);
  if (publishes_ && !exposes_) stage(step, offset);
  all_.steps_.publish(step, call_.context);
  return step;
}

void Collectives::Exchange::stage(uint32_t step, uint64_t offset) {
  std::byte* const slot = all_.steps_.own_data(step, kSlotSize);
  for (uint64_t part = 0; part < parts_; ++part) {
    const auto to = static_cast<int32_t>(part);
    if (pattern_.each && to == all_.rank_) continue;
    const Block block = pattern_.mine(to);
    if (offset >= block.size) continue;
    copy(slot + part_for(to, all_.rank_) * stride_, block.data + offset, std::min(stride_, block.size - offset));
  }
}

void Collectives::Exchange::read(uint32_t step, uint64_t offset) {
  if (!pattern_.each) copy_own(offset + stride_);  // now, while it is in the cache
  for (const int32_t from : all_.others_) {
    if (pattern_.publishes(from)) read_from(from, step, offset);
  }
}

void Collectives::Exchange::read_from(int32_t from, uint32_t step, uint64_t offset) {
  const OutputBlock room = pattern_.theirs(from);
  if (is_active_ && offset == 0) all_.zero_copy_.learn(from, step, request(room.size), call_.context);
  if (!reads_) return;
  const std::byte* const exposed = all_.zero_copy_.input(from);
  if (exposed != nullptr && !pattern_.in_place) {
    if (offset == 0) fetch(from, room.data, exposed, room.size);
    return;
  }
  const uint64_t before = pattern_.each ? part_for(all_.rank_, from) * stride_ : 0;  // parts for other ranks
  const std::byte* const slot =
      exposed != nullptr ? exposed + offset : all_.steps_.wait_for(from, step, kSlotSize, call_.context) + before;
  if (offset >= room.size) return;
  all_.zero_copy_.copy(from, room.data + offset, slot, std::min(stride_, room.size - offset));
}

ZeroCopy::Request Collectives::Exchange::request(uint64_t size) const {
  if (!reads_) return {};
  return {.size = size,
          .offset = pattern_.each && !call_.varies ? static_cast<uint64_t>(all_.rank_) * size : 0,
          .is_listed = pattern_.each && call_.varies,
          .in_process = pattern_.in_process};
}

void Collectives::Exchange::fetch(int32_t rank, std::byte* to, const std::byte* from, uint64_t size) const {
  // memcpy instead of streaming stores. Streaming stores copy 64 MiB faster, but from 4 MiB on a program that then
  // reads its result (all_reduce in place) takes 1.2 to 1.5 times as long.
  constexpr uint64_t kPart = UINT64_C(4) << 20;
  for (uint64_t begin = 0; begin < size; begin += kPart) {
    if (begin > 0) all_.steps_.check(call_.context);
    all_.zero_copy_.copy(rank, to + begin, from + begin, std::min(kPart, size - begin));
  }
}

void Collectives::Exchange::copy_own(uint64_t end) {
  end = std::min(end, pattern_.own.size);
  if (copied_ >= end) return;
  const std::byte* const from = pattern_.mine(pattern_.each ? all_.rank_ : 0).data;
  fetch(all_.rank_, pattern_.own.data + copied_, from + copied_, end - copied_);
  copied_ = end;
}

bool Collectives::Exchange::all_is_exposed() const {
  return pattern_.only_from < 0 ? all_.zero_copy_.all_inputs() : all_.zero_copy_.input(pattern_.only_from) != nullptr;
}

}  // namespace backplane::shm
