// SPDX-License-Identifier: Apache-2.0
//
// A group of those who are left. Rounds of agreement through the store: each survivor announces itself; the lowest one
// that lives writes down who is there, once every member has announced itself or is known to be gone. If it dies before
// that, the next one is the lowest. If somebody on the list dies before the new group has started, its start fails on
// all of them, and they begin another round.
#include <algorithm>
#include <charconv>
#include <utility>

#include "group/group.hpp"
#include "group/pass.hpp"
#include "store/store.hpp"

namespace backplane::core {
namespace {

constexpr const char* kList = "list";
constexpr int64_t kFirstLookNs = INT64_C(10) * 1000000;  // pauses between looks at who is gone
constexpr int64_t kLongestLookNs = INT64_C(200) * 1000000;
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

// Did the keys come within the pause?
bool come(Store& store, const std::vector<std::string>& keys, int64_t pause_ns, Deadline deadline) {
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
       "or "
       "allow a longer timeout",
       name, absent.size() == 1 ? "rank" : "ranks", fmt::join(absent, ", "), allowance.text(),
       absent.size() == 1 ? "is" : "are");
}

class Flag {
 public:
  explicit Flag(std::atomic<bool>& flag) : flag_(flag), mine_(!flag.exchange(true)) {}
  ~Flag() {
    if (mine_) flag_ = false;
  }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  bool mine() const { return mine_; }

 private:
  std::atomic<bool>& flag_;
  const bool mine_;
};

}  // namespace

std::shared_ptr<Group> Group::shrink(int64_t timeout_ns) {
  const Presence presence(*this);
  if (!member() || state_.load() == State::kDestroyed) refuse();
  const Flag flag(shrinking_);
  if (!flag.mine()) fail(BP_INVALID, "group '{}' is being shrunk by another thread already", config_.name);
  const Deadline deadline = Deadline::after(timeout_or(timeout_ns, config_.timeout_ns));
  const Allowance allowance(deadline);
  for (;;) {
    // A round that ran out of time is taken up again by the next call; one that has a list is over.
    const uint64_t number = shrinks_.load();
    const auto round = make_prefix_store(config_.store, fmt::format("shrink{}/", number));
    const std::vector<int32_t> ranks = survivors(*round, deadline, allowance);
    shrinks_.fetch_add(1);
    try {
      return start_shrunk(ranks, number, deadline);
    } catch (const Error& e) {
      std::vector<int32_t> jobs;
      for (const int32_t rank : ranks) jobs.push_back(config_.global_ranks[static_cast<size_t>(rank)]);
      const auto loss = liveness_ ? liveness_->loss_among(jobs) : std::nullopt;
      if (!loss || loss->store || e.status() != BP_PEER_LOST || deadline.passed()) throw;
    }
  }
}

// Takes part in one round; returns its list: ranks of this group in order, with this one among them.
std::vector<int32_t> Group::survivors(Store& round, Deadline deadline, const Allowance& allowance) const {
  round.set(here_key(config_.rank), "1", deadline);
  int64_t pause_ns = kFirstLookNs;
  for (;; pause_ns = std::min(2 * pause_ns, kLongestLookNs)) {
    if (state_.load() == State::kDestroyed) refuse();
    const bool last = deadline.passed();
    const Absences absences =
        liveness_ ? liveness_->absences(last ? Deadline::after(kStoreCallNs) : deadline) : Absences();
    std::vector<int32_t> living;
    for (int32_t rank = 0; rank < config_.world_size; ++rank) {
      if (absences.count(config_.global_ranks[static_cast<size_t>(rank)]) == 0) living.push_back(rank);
    }
    if (std::find(living.begin(), living.end(), config_.rank) == living.end()) {
      fail(BP_PEER_LOST, "shrink of group '{}': the others have given this rank up for lost; it cannot go on with them",
           config_.name);
    }
    if (living.front() == config_.rank && !round.check({kList}, Deadline::after(kStoreCallNs))) {
      std::vector<std::string> keys;
      for (const int32_t rank : living) keys.push_back(here_key(rank));
      if (come(round, keys, pause_ns, deadline)) {
        round.compare_set(kList, "", fmt::format("{}", fmt::join(living, " ")), Deadline::after(kStoreCallNs));
      }
    }
    if (come(round, {kList}, last ? 0 : pause_ns, deadline)) {
      const auto list = parse_list(round.get(kList, Deadline::after(kStoreCallNs)));
      if (std::find(list.begin(), list.end(), config_.rank) != list.end()) return list;
      fail(BP_PEER_LOST, "shrink of group '{}': the others went on without this rank", config_.name);
    }
    if (last) fail_absent(round, config_.name, living, allowance);
  }
}

std::shared_ptr<Group> Group::start_shrunk(const std::vector<int32_t>& ranks, uint64_t number, Deadline deadline) {
  GroupConfig config = config_;
  config.job = job_;
  config.reporter = reporter_;
  config.liveness = liveness_;
  config.key = fmt::format("{}.s{}", config_.key, number);
  config.start_timeout_ns = std::max<int64_t>(deadline.left_ns(), deadline.infinite() ? BP_NO_TIMEOUT : 1);
  config.survives_parent = true;
  config.name = fmt::format("{}-shrunk{}", config_.name, number);
  config.world_size = static_cast<int32_t>(ranks.size());
  config.rank = static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), config_.rank) - ranks.begin());
  config.global_ranks.clear();
  for (const int32_t rank : ranks) config.global_ranks.push_back(config_.global_ranks[static_cast<size_t>(rank)]);
  config.store = make_prefix_store(config_.store, fmt::format("shrink{}/group/", number));
  auto group = start(std::move(config), this);
  disown(group);
  if (state_.load() == State::kDestroyed) {
    group->destroy();
    refuse();
  }
  return group;
}

}  // namespace backplane::core
