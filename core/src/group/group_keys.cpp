// SPDX-License-Identifier: Apache-2.0
#include "group/group_keys.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

#include "rendezvous/rendezvous.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kLeaveNs = INT64_C(2) * 1000000000;
constexpr const char* kLeftCount = "bp/left";

std::string own_left_key(int32_t rank) { return fmt::format("bp/left/{}", rank); }

}  // namespace

GroupKeys::GroupKeys(std::shared_ptr<Store> store, int32_t rank, std::vector<int32_t> global_ranks,
                     std::shared_ptr<FailureDetector> detector)
    : store_(std::move(store)), rank_(rank), global_ranks_(std::move(global_ranks)), detector_(std::move(detector)) {}

GroupKeys::~GroupKeys() {
  try {
    leave();
  } catch (const std::exception&) {
    // The store is lost.
  }
}

// A rank that left before it was lost counts once: its own key exists before it is counted.
void GroupKeys::leave() {
  const std::vector<int32_t> lost = detector_ ? detector_->lost_among(global_ranks_) : std::vector<int32_t>();
  detector_.reset();  // withdraws, if it is the last reference: that writes keys
  if (!store_->removes_prefixes()) return;
  const Deadline deadline = Deadline::after(kLeaveNs);
  int64_t absent = 1;
  if (global_ranks_.size() > 1) {
    store_->set(own_left_key(rank_), "", deadline);
    absent = store_->add(kLeftCount, 1, deadline);
    // The others have counted this rank as lost, and removed the keys.
    if (absent == 1 && !store_->check({kJoinedKey}, deadline)) return store_->remove_prefix("", deadline);
  }
  for (const int32_t rank : lost) {
    if (!store_->check({own_left_key(rank)}, deadline)) ++absent;
  }
  if (absent >= static_cast<int64_t>(global_ranks_.size())) store_->remove_prefix("", deadline);
}

}  // namespace backplane::core
