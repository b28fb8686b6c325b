// SPDX-License-Identifier: Apache-2.0
//
// Split: new groups of the ranks with the same color. Colors and keys are exchanged by an all_gather in host memory or,
// in groups without a backend for that, through the store.
#include <algorithm>
#include <sstream>

#include "group/group.hpp"
#include "store/store.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kDiagnosisNs = INT64_C(2) * 1000000000;

// The first rank that has not written to the store, -1 if all have.
int32_t first_absent(Store& store, int32_t world_size) {
  const Deadline deadline = Deadline::after(kDiagnosisNs);
  for (int32_t rank = 0; rank < world_size; ++rank) {
    if (!store.check({std::to_string(rank)}, deadline)) return rank;
  }
  return -1;
}

// Returns the texts of all ranks. Four store calls per rank; the last rank makes one more for each rank. The last one
// that has read the result removes the keys.
std::string gather_texts(Store& store, int32_t rank, int32_t world_size, const std::string& mine, Deadline deadline) {
  store.set(std::to_string(rank), mine, deadline);
  if (store.add("said", 1, deadline) == world_size) {
    std::string all;
    for (int32_t each = 0; each < world_size; ++each) all += store.get(std::to_string(each), deadline) + ' ';
    store.set("all", all, deadline);
  }
  std::string all = store.get("all", deadline);
  if (store.add("read", 1, deadline) == world_size && store.removes_prefixes()) store.remove_prefix("", deadline);
  return all;
}

}  // namespace

std::vector<int64_t> Subgroups::gather_by_store(const std::vector<int64_t>& mine) {
  const GroupConfig& config = parent_.config();
  const Deadline deadline = Deadline::after(config.timeout_ns);
  const Allowance allowance(deadline);
  const auto store = make_prefix_store(parent_.store(), fmt::format("split{}/", splits_.fetch_add(1)));
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(config.world_size));
  try {
    std::istringstream numbers(
        gather_texts(*store, config.rank, config.world_size, fmt::format("{}", fmt::join(mine, " ")), deadline));
    for (int64_t& each : all) numbers >> each;
    if (!numbers) fail(BP_INTERNAL, "split of group '{}': the store holds malformed numbers", config.name);
  } catch (const Error& e) {
    parent_.state().throw_cause();  // if an abort ended the wait
    const int32_t absent = e.status() == BP_TIMEOUT ? first_absent(*store, config.world_size) : -1;
    if (absent < 0) throw;
    fail(BP_TIMEOUT, "split of group '{}': rank {} did not come within {}; let all of its ranks call it", config.name,
         absent, allowance.text());
  }
  return all;
}

std::vector<int64_t> Subgroups::gather_by_operation(const std::vector<int64_t>& mine) {
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(parent_.config().world_size));
  bp_op op;
  bp_op_init(&op, BP_ALL_GATHER);
  op.dtype = BP_I64;
  op.input = {const_cast<int64_t*>(mine.data()), mine.size(), BP_HOST, 0};
  op.output = {all.data(), all.size(), BP_HOST, 0};
  parent_.operations().run(op);
  return all;
}

bool Subgroups::can_gather_in_host_memory() const {
  const Agent* const agent = parent_.agents().serving(BP_HOST);
  return agent != nullptr && (agent->supports_schedules() || agent->native(BP_ALL_GATHER, BP_I64, 0, BP_HOST, false));
}

std::shared_ptr<Group> Subgroups::split(int64_t color, int64_t key) {
  const auto use = UseGuard::of_active(parent_.state());
  const GroupConfig& config = parent_.config();
  const uint64_t number = made_.fetch_add(1);
  agree(number, {true, "", "", {}}, Deadline::after(config.timeout_ns));
  const std::vector<int64_t> mine = {color, key};
  const std::vector<int64_t> all = can_gather_in_host_memory() ? gather_by_operation(mine) : gather_by_store(mine);
  const auto color_of = [&all](int32_t rank) { return all[2 * static_cast<size_t>(rank)]; };
  const auto key_of = [&all](int32_t rank) { return all[2 * static_cast<size_t>(rank) + 1]; };
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < config.world_size; ++rank) {
    if (color >= 0 && color_of(rank) == color) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&key_of](int32_t a, int32_t b) { return key_of(a) < key_of(b); });
  if (!ranks.empty()) return make(number, {false, default_name(number), "", ranks}, BP_INHERIT_TIMEOUT, {});
  GroupConfig outside = config;
  outside.name = default_name(number);
  outside.rank = -1;
  outside.world_size = 0;
  outside.global_ranks.clear();
  return Group::start(std::move(outside));
}

}  // namespace backplane::core
