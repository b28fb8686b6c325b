// SPDX-License-Identifier: Apache-2.0
//
// Shrink: a new group of the surviving ranks, on which they agree in rounds through the store. Each survivor registers;
// the lowest live rank writes the list of survivors once every member has registered or is known to be lost. If it dies
// before that, the next rank is the lowest. If a rank of the list dies before the new group has started, the start
// fails on all of them, and they begin another round.
#include <algorithm>
#include <charconv>
#include <utility>

#include "group/flag_guard.hpp"
#include "group/group.hpp"
#include "store/store.hpp"

namespace backplane::core {
namespace {

constexpr const char* kList = "list";
constexpr int64_t kMinShrinkPauseNs = INT64_C(10) * 1000000;  // pauses between checks for lost ranks
constexpr int64_t kMaxShrinkPauseNs = INT64_C(200) * 1000000;
constexpr int64_t kStoreCallNs = INT64_C(2) * 1000000000;

std::string here_key(int32_t rank) { return fmt::format("here/{}", rank); }

std::vector<int32_t> parse_list(const std::string& text) {
  std::vector<int32_t> ranks;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int32_t rank = -1;
    const auto parsed = std::from_chars(at, end, rank);
    if (parsed.ec != std::errc()) break;
    ranks.push_back(rank);
    at = parsed.ptr + 1;
  }
  return ranks;
}

// Whether the keys are set within the pause.
bool await_keys(Store& store, const std::vector<std::string>& keys, int64_t pause_ns, Deadline deadline) {
  try {
    store.wait(keys, std::min(deadline, Deadline::after(pause_ns)));
    return true;
  } catch (const Error& e) {
    if (e.status() != BP_TIMEOUT) throw;
    return false;
  }
}

[[noreturn]] void fail_absent(Store& round, const std::string& name, const std::vector<int32_t>& expected,
                              const Allowance& allowance) {
  const Deadline deadline = Deadline::after(kStoreCallNs);
  std::vector<std::string> absent;
  for (const int32_t rank : expected) {
    if (!round.check({here_key(rank)}, deadline)) absent.push_back(std::to_string(rank));
  }
  if (absent.empty()) {
    fail(BP_TIMEOUT, "shrink of group '{}': the lowest surviving rank wrote no list within {}; call it again", name,
         allowance.text());
  }
  fail(BP_TIMEOUT,
       "shrink of group '{}': {} {} did not come within {} and {} not known to have ended; let all survivors call it, "
       "or allow a longer timeout",
       name, absent.size() == 1 ? "rank" : "ranks", fmt::join(absent, ", "), allowance.text(),
       absent.size() == 1 ? "is" : "are");
}

}  // namespace

std::shared_ptr<Group> Subgroups::shrink(int64_t timeout_ns) {
  const UseGuard use(parent_.state());
  const GroupConfig& config = parent_.config();
  const std::shared_ptr<FailureDetector>& detector = parent_.job().detector;
  if (!parent_.member() || parent_.state().destroyed()) parent_.state().refuse();
  const FlagGuard flag(shrinking_);
  if (!flag.is_owner()) fail(BP_INVALID, "group '{}' is already being shrunk by another thread", config.name);
  const Deadline deadline = Deadline::after(timeout_or(timeout_ns, config.timeout_ns));
  const Allowance allowance(deadline);
  for (;;) {
    // A call continues the round of an earlier call that timed out. A round ends with its list.
    const uint64_t number = shrinks_.load();
    const auto round = make_prefix_store(config.store, fmt::format("shrink{}/", number));
    const std::vector<int32_t> ranks = survivors(*round, deadline, allowance);
    shrinks_.fetch_add(1);
    try {
      return start_shrunk(ranks, number, deadline);
    } catch (const Error& e) {
      std::vector<int32_t> global_ranks;
      for (const int32_t rank : ranks) global_ranks.push_back(config.global_ranks[static_cast<size_t>(rank)]);
      const auto loss = detector ? detector->loss_among(global_ranks) : std::nullopt;
      if (!loss || loss->store || e.status() != BP_PEER_LOST || deadline.passed()) throw;
    }
  }
}

// Takes part in one round. Returns its list: ranks of this group, in order, including this one.
std::vector<int32_t> Subgroups::survivors(Store& round, Deadline deadline, const Allowance& allowance) const {
  const GroupConfig& config = parent_.config();
  const std::shared_ptr<FailureDetector>& detector = parent_.job().detector;
  round.set(here_key(config.rank), "1", deadline);
  int64_t pause_ns = kMinShrinkPauseNs;
  for (;; pause_ns = std::min(2 * pause_ns, kMaxShrinkPauseNs)) {
    if (parent_.state().destroyed()) parent_.state().refuse();
    const bool last = deadline.passed();
    const Absences absences =
        detector ? detector->absences(last ? Deadline::after(kStoreCallNs) : deadline) : Absences();
    std::vector<int32_t> living;
    for (int32_t rank = 0; rank < config.world_size; ++rank) {
      if (absences.count(config.global_ranks[static_cast<size_t>(rank)]) == 0) living.push_back(rank);
    }
    if (std::find(living.begin(), living.end(), config.rank) == living.end()) {
      fail(BP_PEER_LOST, "shrink of group '{}': the other ranks consider this rank lost; it cannot join them",
           config.name);
    }
    if (living.front() == config.rank && !round.check({kList}, Deadline::after(kStoreCallNs))) {
      std::vector<std::string> keys;
      for (const int32_t rank : living) keys.push_back(here_key(rank));
      if (await_keys(round, keys, pause_ns, deadline)) {
        round.compare_set(kList, "", fmt::format("{}", fmt::join(living, " ")), Deadline::after(kStoreCallNs));
      }
    }
    if (await_keys(round, {kList}, last ? 0 : pause_ns, deadline)) {
      const auto list = parse_list(round.get(kList, Deadline::after(kStoreCallNs)));
      if (std::find(list.begin(), list.end(), config.rank) != list.end()) return list;
      fail(BP_PEER_LOST, "shrink of group '{}': the other ranks made their list without this rank", config.name);
    }
    if (last) fail_absent(round, config.name, living, allowance);
  }
}

std::shared_ptr<Group> Subgroups::start_shrunk(const std::vector<int32_t>& ranks, uint64_t number, Deadline deadline) {
  const GroupConfig& parent = parent_.config();
  GroupConfig config = child_config(ranks, fmt::format("s{}", number));
  config.name = fmt::format("{}-shrunk{}", parent.name, number);
  config.start_timeout_ns = std::max<int64_t>(deadline.left_ns(), deadline.infinite() ? BP_NO_TIMEOUT : 1);
  config.survives_parent = true;
  config.base_name = base_name(parent);
  return detach(Group::start(std::move(config), &parent_));
}

std::shared_ptr<Group> Subgroups::detach(const std::shared_ptr<Group>& group) {
  release(group);
  if (parent_.state().destroyed()) {
    group->destroy();
    parent_.state().refuse();
  }
  return group;
}

}  // namespace backplane::core
