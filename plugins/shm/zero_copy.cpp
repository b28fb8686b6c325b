// SPDX-License-Identifier: Apache-2.0
#include "zero_copy.hpp"

#include <cstring>
#include <string>

namespace backplane::shm {
namespace {

constexpr std::byte kNotMapped{};  // stands for an exposed input of which this rank reads nothing

}  // namespace

void ZeroCopy::expose(const std::byte* input, std::byte* output, uint64_t size, const std::byte* scalar,
                      uint64_t element) {
  is_active_ = true;
  for (RankState& each : ranks_) each = {};
  mine_ = {};
  size_ = size;
  RankState& own = ranks_[static_cast<size_t>(rank_)];
  if (scalar != nullptr) std::memcpy(mine_.scalar.data(), scalar, element);
  own.scalar = mine_.scalar;
  if (pools_ == nullptr || size < kMinBytes) return;
  if (input != nullptr && (mine_.input = pools_->location_of(input, size)) != 0) own.input = input;
  if (output != nullptr && (mine_.output = pools_->location_of(output, size)) != 0) own.output = output;
}

void ZeroCopy::expose_in_process(const std::byte* input, uint64_t size) {
  RankState& own = ranks_[static_cast<size_t>(rank_)];
  if (own.input != nullptr || size < kMinBytes || !cross_->can_expose(input, size)) return;
  const uint64_t location = location_in_process(input);
  if (location == 0) return;  // such as an address with a tag
  mine_.input = location;
  own.input = input;
  own.in_process = true;
}

void ZeroCopy::revoke() noexcept {
  std::byte* const output = at(rank_).output;
  if (at(rank_).input != nullptr || output != nullptr) steps_.peers().mark_collective_failed();
  if (output == nullptr) return;
  const Pages pages(output, size_);
  if (pages.size() > 0) pools_->detach_pages(mine_.output, output + pages.begin, pages.size());
}

void ZeroCopy::check_all_revoked() const {
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank) {
    if (rank != rank_ && at(rank).input != nullptr) check_revoked_by(rank);
  }
}

void ZeroCopy::check_revoked_by(int32_t rank) const {
  if (!steps_.peers().has_failed_collective(rank)) return;
  throw sdk::Failure(BP_PEER_LOST, "rank " + std::to_string(rank) + " failed while this rank read its exposed buffer",
                     rank);
}

void ZeroCopy::finish(const StepContext& context, int32_t only_reader, const std::function<void()>& meanwhile) {
  check_revoked();
  const bool any = any_input();
  const uint32_t step = any ? steps_.begin(context) : 0;
  if (any) steps_.publish(step, context);
  if (meanwhile) meanwhile();
  if (at(rank_).input == nullptr) return;
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank) {
    if (only_reader < 0 || only_reader == rank) steps_.wait_for(rank, step, 0, context);
  }
}

void ZeroCopy::announce(uint32_t step, const uint64_t* counts, const uint64_t* displs, uint64_t element) const {
  std::memcpy(steps_.own_data(step, sizeof mine_), &mine_, sizeof mine_);
  if (counts == nullptr || displs == nullptr || mine_.input == 0) return;
  std::byte* const list = steps_.own_data(step, kSlotSize);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const BlockEntry block = {mine_.input + displs[rank] * element, counts[rank] * element};
    std::memcpy(list + rank * sizeof block, &block, sizeof block);
  }
}

// The location of another rank's block for this one.
uint64_t ZeroCopy::listed_location(int32_t rank, uint32_t step, const Request& request,
                                   const StepContext& context) const {
  BlockEntry block;
  const std::byte* const list = steps_.wait_for(rank, step, kSlotSize, context);
  std::memcpy(&block, list + static_cast<size_t>(rank_) * sizeof block, sizeof block);
  if (block.size == request.size) return block.location;
  throw sdk::Failure(BP_INVALID,
                     "rank " + std::to_string(rank) + " has " + std::to_string(block.size) +
                         " bytes for this rank, which expects " + std::to_string(request.size) +
                         "; pass equal counts on both ranks",
                     rank);
}

void ZeroCopy::learn(int32_t rank, uint32_t step, const Request& request, const StepContext& context) {
  Announcement announcement;
  std::memcpy(&announcement, steps_.wait_for(rank, step, sizeof announcement, context), sizeof announcement);
  if (rank == rank_) return;
  RankState& theirs = ranks_[static_cast<size_t>(rank)];
  theirs.scalar = announcement.scalar;
  if (pools_ == nullptr && cross_ == nullptr) return;
  is_active_ = true;
  if (announcement.input != 0 && request.size == 0) {
    theirs.in_process = is_in_process(announcement.input);
    theirs.input = &kNotMapped;
  } else if (announcement.input != 0) {
    const uint64_t location =
        request.is_listed ? listed_location(rank, step, request, context) : announcement.input + request.offset;
    theirs.in_process = is_in_process(location);  // it may differ from that of the whole input
    theirs.input = find(rank, location, request);
  }
  if (announcement.output != 0 && pools_ != nullptr)
    theirs.output = pools_->at(rank, announcement.output, request.size, request.alignment);
}

// Throws BP_INVALID for a location that the rank must not expose, BP_PEER_LOST if its process cannot be read.
const std::byte* ZeroCopy::find(int32_t rank, uint64_t location, const Request& request) const {
  if (!is_in_process(location) && pools_ != nullptr) return pools_->at(rank, location, request.size, request.alignment);
  const std::byte* const address = address_of(location);
  if (is_in_process(location) && request.in_process && cross_ != nullptr && address != nullptr) {
    cross_->check_can_read(rank);
    return address;
  }
  throw sdk::Failure(BP_INVALID, "rank " + std::to_string(rank) + " announced a buffer that this rank cannot read",
                     rank);
}

void ZeroCopy::copy(int32_t rank, std::byte* to, const std::byte* from, uint64_t size) const {
  if (rank == rank_ || !at(rank).in_process) {
    if (size > 0 && to != from) std::memcpy(to, from, size);
  } else if (size > 0 && !cross_->read(rank, from, to, size)) {
    check_revoked_by(rank);  // a rank that failed may have freed it
    cross_->check_can_read(rank);
    throw sdk::Failure(
        BP_INVALID,
        "the input of rank " + std::to_string(rank) + " cannot be read in its process; set shm's option cma to off",
        rank);
  }
}

void ZeroCopy::learn_all(uint32_t step, const Request& request, const StepContext& context) {
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank) learn(rank, step, request, context);
}

bool ZeroCopy::any_input() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const RankState& state) { return state.input != nullptr; });
}
bool ZeroCopy::all_inputs() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& state) { return state.input != nullptr; });
}
bool ZeroCopy::all() const {
  return all_inputs() &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& state) { return state.output != nullptr; });
}

}  // namespace backplane::shm
