// SPDX-License-Identifier: Apache-2.0
#include "creation_tags.hpp"

#include <bit>

#include "backplane/sdk/failure.hpp"

namespace backplane::mpi {
namespace {

constexpr uint64_t kTags = 32768;  // of every MPI, by the standard

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
uint64_t next(uint64_t& state) {
  uint64_t mixed = state += 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebU;
  return mixed ^ mixed >> 31;
}

}  // namespace

CreationTags::Reservation::Reservation(CreationTags& tags, uint64_t number) : tags_(tags) {
  const std::lock_guard lock(tags_.mutex_);
  for (size_t i = 0; i < proposed_.size(); ++i) {
    proposed_[i] = static_cast<int>(next(number) % kTags);
    if (tags_.reserved_.insert(proposed_[i]).second) bits_ |= 1U << i;
  }
}

CreationTags::Reservation::~Reservation() {
  const std::lock_guard lock(tags_.mutex_);
  keep(0);
}

int CreationTags::Reservation::choose(uint32_t common) {
  if ((common & bits_) == 0) {
    throw sdk::Failure(BP_RESOURCE,
                       "mpi: too many groups are being made at the same time; make some of them after the others");
  }
  const int chosen = std::countr_zero(common & bits_);
  const std::lock_guard lock(tags_.mutex_);
  keep(1U << chosen);
  return proposed_[static_cast<size_t>(chosen)];
}

void CreationTags::Reservation::keep(uint32_t bits) {
  for (size_t i = 0; i < proposed_.size(); ++i) {
    if ((bits_ & ~bits & 1U << i) != 0) tags_.reserved_.erase(proposed_[i]);
  }
  bits_ &= bits;
}

}  // namespace backplane::mpi
