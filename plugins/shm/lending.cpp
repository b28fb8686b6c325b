// SPDX-License-Identifier: Apache-2.0
#include "lending.hpp"

#include <cstring>
#include <string>

namespace backplane::shm {
namespace {

// Below, the step with which it ends costs more than the copy that it spares.
constexpr uint64_t kWorthIt = UINT64_C(4) << 10;

}  // namespace

void Lending::offer(const std::byte* input, std::byte* output, uint64_t size, const std::byte* scalar,
                    uint64_t element) {
  std::fill(lent_.begin(), lent_.end(), Lent{});
  mine_ = {};
  size_ = size;
  if (pools_ == nullptr || size < kWorthIt) return;
  Lent& own = lent_[static_cast<size_t>(rank_)];
  if (scalar != nullptr) std::memcpy(mine_.scalar.data(), scalar, element);
  own.scalar = mine_.scalar;
  if (input != nullptr && (mine_.input = pools_->place_of(input, size)) != 0) own.input = input;
  if (output != nullptr && (mine_.output = pools_->place_of(output, size)) != 0) own.output = output;
}

void Lending::take_back() noexcept {
  std::byte* const output = at(rank_).output;
  if (at(rank_).input != nullptr || output != nullptr) steps_.peers().break_loan();
  if (output == nullptr) return;
  const Pages pages(output, size_);
  if (pages.size() > 0) pools_->take_back(mine_.output, output + pages.begin, pages.size());
}

void Lending::check_loans() const {
  for (int32_t rank = 0; rank < static_cast<int32_t>(lent_.size()); ++rank) {
    if (rank == rank_ || at(rank).input == nullptr || !steps_.peers().has_broken_loan(rank)) continue;
    throw sdk::Failure(BP_PEER_LOST,
                       "rank " + std::to_string(rank) + " gave up while this rank read the buffer that it had lent",
                       rank);
  }
}

void Lending::show(uint32_t step) const { std::memcpy(steps_.mine(step, sizeof mine_), &mine_, sizeof mine_); }

void Lending::hear(int32_t rank, uint32_t step, uint64_t size, uint64_t alignment, const Passage& passage) {
  Places places;
  std::memcpy(&places, steps_.see(rank, step, sizeof places, passage), sizeof places);
  if (rank == rank_ || pools_ == nullptr) return;
  Lent& theirs = lent_[static_cast<size_t>(rank)];
  theirs.scalar = places.scalar;
  if (places.input != 0) theirs.input = pools_->at(rank, places.input, size, alignment);
  if (places.output != 0) theirs.output = pools_->at(rank, places.output, size, alignment);
}

void Lending::hear_all(uint32_t step, uint64_t size, uint64_t alignment, const Passage& passage) {
  for (int32_t rank = 0; rank < static_cast<int32_t>(lent_.size()); ++rank) {
    hear(rank, step, size, alignment, passage);
  }
}

bool Lending::any_input() const {
  return std::any_of(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.input != nullptr; });
}
bool Lending::all_inputs() const {
  return std::all_of(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.input != nullptr; });
}
bool Lending::all() const {
  return all_inputs() &&
         std::all_of(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.output != nullptr; });
}

}  // namespace backplane::shm
