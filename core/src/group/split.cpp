// SPDX-License-Identifier: Apache-2.0
//
// Groups of those who name the same color. What each rank names goes to all by an all_gather in host memory or, in
// groups without a backend for that, through the store.
#include <algorithm>
#include <sstream>

#include "group/group.hpp"
#include "group/pass.hpp"
#include "store/store.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kDiagnosisNs = INT64_C(2) * 1000000000;

// The first that has said nothing in the store; -1: all have.
int32_t first_silent(Store& store, int32_t world_size) {
  const Deadline deadline = Deadline::after(kDiagnosisNs);
  for (int32_t rank = 0; rank < world_size; ++rank) {
    if (!store.check({std::to_string(rank)}, deadline)) return rank;
  }
  return -1;
}

// Store calls per rank: three, and one more for each rank for the last to come.
std::string gather_words(Store& store, int32_t rank, int32_t world_size, const std::string& mine, Deadline deadline) {
  store.set(std::to_string(rank), mine, deadline);
  if (store.add("said", 1, deadline) == world_size) {
    std::string all;
    for (int32_t each = 0; each < world_size; ++each) all += store.get(std::to_string(each), deadline) + ' ';
    store.set("all", all, deadline);
  }
  return store.get("all", deadline);
}

}  // namespace

std::vector<int64_t> Group::gather_by_store(const std::vector<int64_t>& mine) {
  const Deadline deadline = Deadline::after(config_.timeout_ns);
  const Allowance allowance(deadline);
  const auto store = make_prefix_store(store_, fmt::format("split{}/", splits_.fetch_add(1)));
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(config_.world_size));
  try {
    std::istringstream words(
        gather_words(*store, config_.rank, config_.world_size, fmt::format("{}", fmt::join(mine, " ")), deadline));
    for (int64_t& each : all) words >> each;
    if (!words) fail(BP_INTERNAL, "split of group '{}': the store has other words than its ranks", config_.name);
  } catch (const Error& e) {
    {
      const std::lock_guard lock(mutex_);
      if (cause_) throw Error(*cause_);  // the abort ended the wait
    }
    const int32_t silent = e.status() == BP_TIMEOUT ? first_silent(*store, config_.world_size) : -1;
    if (silent < 0) throw;
    fail(BP_TIMEOUT, "split of group '{}': rank {} did not come within {}; let all of its ranks call it", config_.name,
         silent, allowance.text());
  }
  return all;
}

std::vector<int64_t> Group::gather_in_memory(const std::vector<int64_t>& mine) {
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(config_.world_size));
  bp_op op;
  bp_op_init(&op, BP_ALL_GATHER);
  op.dtype = BP_I64;
  op.input = {const_cast<int64_t*>(mine.data()), mine.size(), BP_HOST, 0};
  op.output = {all.data(), all.size(), BP_HOST, 0};
  run(op);
  return all;
}

bool Group::gathers_in_host_memory() const {
  const Agent* const agent = by_memory_[BP_HOST];
  return agent != nullptr && (agent->can_complete() || agent->native(BP_ALL_GATHER, BP_I64, 0, BP_HOST, false));
}

std::shared_ptr<Group> Group::split(int64_t color, int64_t key) {
  const Pass pass(*this);
  const std::vector<int64_t> mine = {color, key};
  const std::vector<int64_t> all = gathers_in_host_memory() ? gather_in_memory(mine) : gather_by_store(mine);
  const auto color_of = [&all](int32_t rank) { return all[2 * static_cast<size_t>(rank)]; };
  const auto key_of = [&all](int32_t rank) { return all[2 * static_cast<size_t>(rank) + 1]; };
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < config_.world_size; ++rank) {
    if (color >= 0 && color_of(rank) == color) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&key_of](int32_t a, int32_t b) { return key_of(a) < key_of(b); });
  if (!ranks.empty()) return new_group(ranks, "", BP_INHERIT_TIMEOUT);
  GroupConfig outside = config_;
  outside.name = fmt::format("{}.{}", config_.name, children_made_.fetch_add(1));
  outside.rank = -1;
  outside.world_size = 0;
  outside.global_ranks.clear();
  return start(std::move(outside));
}

}  // namespace backplane::core
