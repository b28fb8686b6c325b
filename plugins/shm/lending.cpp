// SPDX-License-Identifier: Apache-2.0
#include "lending.hpp"

#include <cstring>
#include <string>

namespace backplane::shm {
namespace {

constexpr std::byte kUnread{};  // stands for an input that is lent, and of which this rank needs no mapping

}  // namespace

void Lending::offer(const std::byte* input, std::byte* output, uint64_t size, const std::byte* scalar,
                    uint64_t element) {
  may_lend_ = true;
  for (Lent& each : lent_) each = {.reads_processes = each.reads_processes, .all_know = each.all_know};
  to_all_ = false;
  mine_ = {};
  size_ = size;
  Lent& own = lent_[static_cast<size_t>(rank_)];
  if (scalar != nullptr) std::memcpy(mine_.scalar.data(), scalar, element);
  own.scalar = mine_.scalar;
  if (pools_ == nullptr || size < kWorthIt) return;
  if (input != nullptr && (mine_.input = pools_->place_of(input, size)) != 0) own.input = input;
  if (output != nullptr && (mine_.output = pools_->place_of(output, size)) != 0) own.output = output;
}

void Lending::offer_in_process(const std::byte* input, uint64_t size) {
  Lent& own = lent_[static_cast<size_t>(rank_)];
  if (own.input != nullptr || size < kWorthIt || !cross_->can_lend(input, size)) return;
  const uint64_t place = place_in_process(input);
  if (place == 0) return;  // as with addresses that carry a tag
  mine_.input = place;
  own.input = input;
  own.in_process = true;
}

bool Lending::only_in_processes() const {
  return any_input() && std::all_of(lent_.begin(), lent_.end(),
                                    [](const Lent& lent) { return lent.input == nullptr || lent.in_process; });
}

bool Lending::knows_all() const {
  return std::all_of(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.reads_processes; });
}
bool Lending::all_know() const {
  return std::all_of(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.all_know; });
}

void Lending::say_who_reads(const Trial::Best& took, bool to_all) {
  to_all_ = to_all;
  if (cross_ == nullptr || !cross_->reaches_all()) return;
  mine_.reads_processes = 1;
  mine_.took = took;
  Lent& own = lent_[static_cast<size_t>(rank_)];
  own.reads_processes = true;
  own.all_know = own.all_know || to_all;
  own.took = took;
}

void Lending::ask_to_meet() {
  mine_.meets = 1;
  lent_[static_cast<size_t>(rank_)].meets = true;
}

Trial::Best Lending::shortest_times() const {
  Trial::Best shortest = {};
  for (const Lent& each : lent_) {
    for (size_t way = 0; way < shortest.size(); ++way) {
      if (shortest[way] == 0 || (each.took[way] > 0 && each.took[way] < shortest[way])) shortest[way] = each.took[way];
    }
  }
  return shortest;
}

Trial::Best Lending::longest_times() const {
  Trial::Best longest = {};
  for (const Lent& each : lent_) {
    for (size_t way = 0; way < longest.size(); ++way) longest[way] = std::max(longest[way], each.took[way]);
  }
  return longest;
}

void Lending::take_back() noexcept {
  std::byte* const output = at(rank_).output;
  if (at(rank_).input != nullptr || output != nullptr) steps_.peers().break_loan();
  if (output == nullptr) return;
  const Pages pages(output, size_);
  if (pages.size() > 0) pools_->take_back(mine_.output, output + pages.begin, pages.size());
}

void Lending::check_lenders() const {
  for (int32_t rank = 0; rank < static_cast<int32_t>(lent_.size()); ++rank) {
    if (rank != rank_ && at(rank).input != nullptr) check_lender(rank);
  }
}

void Lending::check_lender(int32_t rank) const {
  if (!steps_.peers().has_broken_loan(rank)) return;
  throw sdk::Failure(
      BP_PEER_LOST, "rank " + std::to_string(rank) + " gave up while this rank read the buffer that it had lent", rank);
}

void Lending::check_reach(int32_t rank) const {
  if (cross_->reaches(rank)) return;
  throw sdk::Failure(BP_PEER_LOST,
                     "the process of rank " + std::to_string(rank) +
                         " cannot be read any more; if it lives, set shm's option cma to off",
                     rank);
}

void Lending::show(uint32_t step, const uint64_t* counts, const uint64_t* displs, uint64_t element) const {
  std::memcpy(steps_.mine(step, sizeof mine_), &mine_, sizeof mine_);
  if (counts == nullptr || displs == nullptr || mine_.input == 0) return;
  std::byte* const list = steps_.mine(step, kSlotSize);
  for (size_t rank = 0; rank < lent_.size(); ++rank) {
    const Listed block = {mine_.input + displs[rank] * element, counts[rank] * element};
    std::memcpy(list + rank * sizeof block, &block, sizeof block);
  }
}

// Where another rank has its block for this one.
uint64_t Lending::listed(int32_t rank, uint32_t step, const Wanted& wanted, const Passage& passage) const {
  Listed block;
  const std::byte* const list = steps_.see(rank, step, kSlotSize, passage);
  std::memcpy(&block, list + static_cast<size_t>(rank_) * sizeof block, sizeof block);
  if (block.size == wanted.size) return block.place;
  throw sdk::Failure(BP_INVALID,
                     "rank " + std::to_string(rank) + " has " + std::to_string(block.size) +
                         " bytes for this rank, which names " + std::to_string(wanted.size) + "; give both one count",
                     rank);
}

void Lending::hear(int32_t rank, uint32_t step, const Wanted& wanted, const Passage& passage) {
  Places places;
  std::memcpy(&places, steps_.see(rank, step, sizeof places, passage), sizeof places);
  if (rank == rank_) return;
  Lent& theirs = lent_[static_cast<size_t>(rank)];
  theirs.scalar = places.scalar;
  theirs.meets = places.meets == 1;
  if (pools_ == nullptr && cross_ == nullptr) return;
  theirs.took = places.took;
  if (places.reads_processes == 1) {
    theirs.reads_processes = true;
    theirs.all_know = theirs.all_know || to_all_;
  }
  may_lend_ = true;
  if (places.input != 0 && wanted.size == 0) {
    theirs.in_process = is_in_process(places.input);
    theirs.input = &kUnread;
  } else if (places.input != 0) {
    const uint64_t place = wanted.is_listed ? listed(rank, step, wanted, passage) : places.input + wanted.offset;
    theirs.in_process = is_in_process(place);  // whatever was said of the others
    theirs.input = find(rank, place, wanted);
  }
  if (places.output != 0 && pools_ != nullptr)
    theirs.output = pools_->at(rank, places.output, wanted.size, wanted.alignment);
}

// Throws BP_INVALID if it is not what that rank may lend, BP_PEER_LOST if it was.
const std::byte* Lending::find(int32_t rank, uint64_t place, const Wanted& wanted) const {
  if (!is_in_process(place) && pools_ != nullptr) return pools_->at(rank, place, wanted.size, wanted.alignment);
  const std::byte* const address = address_of(place);
  if (is_in_process(place) && wanted.in_process && cross_ != nullptr && address != nullptr) {
    check_reach(rank);
    return address;
  }
  throw sdk::Failure(BP_INVALID, "rank " + std::to_string(rank) + " names a buffer that this rank cannot read", rank);
}

void Lending::copy(int32_t rank, std::byte* to, const std::byte* from, uint64_t size) const {
  if (rank == rank_ || !at(rank).in_process) {
    if (size > 0 && to != from) std::memcpy(to, from, size);
  } else if (size > 0 && !cross_->read(rank, from, to, size)) {
    check_lender(rank);  // who gives up may free it
    check_reach(rank);
    throw sdk::Failure(
        BP_INVALID,
        "the input of rank " + std::to_string(rank) + " cannot be read in its process; set shm's option cma to off",
        rank);
  }
}

void Lending::hear_all(uint32_t step, const Wanted& wanted, const Passage& passage) {
  for (int32_t rank = 0; rank < static_cast<int32_t>(lent_.size()); ++rank) hear(rank, step, wanted, passage);
}

bool Lending::any_input() const {
  return std::any_of(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.input != nullptr; });
}
bool Lending::any_meets() const {
  return std::any_of(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.meets; });
}
bool Lending::all_inputs() const {
  return std::all_of(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.input != nullptr; });
}
bool Lending::all() const {
  return all_inputs() &&
         std::all_of(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.output != nullptr; });
}

}  // namespace backplane::shm
