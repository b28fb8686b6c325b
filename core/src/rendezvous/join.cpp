// SPDX-License-Identifier: Apache-2.0
//
// Joining: each rank claims its number by compare_set, compares its world size with that of the first rank, and
// increments a counter. The last rank sets the result, for which all wait. A rank that finds a contradiction sets the
// result as well: all ranks then fail with the same text instead of a timeout.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <random>
#include <utility>
#include <vector>

#include "liveness/process_identity.hpp"
#include "rendezvous/rendezvous.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr const char* kWorldKey = "bp/join/world";
constexpr const char* kCountKey = "bp/join/count";
constexpr const char* kComplete = "complete";  // any other result is the reason why the job cannot start
constexpr int64_t kDiagnosisNs = 2'000'000'000;
constexpr size_t kNamedRanks = 16;

std::string rank_key(int32_t rank) { return fmt::format("bp/join/rank/{}", rank); }

// Random digits distinguish claims of the same identity: "9f3a8c0011223344 host, pid 17".
constexpr size_t kNonceSize = 17;

std::string make_claim(const std::string& identity) {
  std::random_device entropy;
  return fmt::format("{:08x}{:08x} {}", entropy() & 0xFFFFFFFFU, entropy() & 0xFFFFFFFFU, identity);
}

std::string identity_of(const std::string& claim) { return claim.size() > kNonceSize ? claim.substr(kNonceSize) : "?"; }

std::string duplicate_text(const Store& store, int32_t rank, const std::string& first, const std::string& second) {
  constexpr std::string_view kFile = "file://";
  const std::string where = store.describe();
  std::string text =
      fmt::format("rank {} is claimed by two processes: {} and {} (at {}); ", rank, first, second, where);
  if (where.compare(0, kFile.size(), kFile) != 0) {
    return text + "give each process a rank of its own, or each of two jobs its own MASTER_PORT or BACKPLANE_JOB_ID";
  }
  const std::string path = where.substr(kFile.size());
  if (process_state(first) == ProcessState::kEnded) {
    return text + fmt::format("the first has ended, so the file is from an earlier run; remove {}", path);
  }
  return text +
         fmt::format("give each process a rank of its own, or remove {} if the first is from an earlier run", path);
}

// "1", "1 and 3", "0, 2 and others"
std::string rank_list(const std::vector<int32_t>& ranks, bool more) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() && !more ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text + (more ? " and others" : "");
}

// The ranks that have not claimed their numbers, as a list; empty if there is none, or no time to look.
std::string missing_ranks(Store& store, int32_t world_size, const Deadline& deadline) {
  constexpr int32_t kTogether = 256;  // ranks in one request
  std::vector<int32_t> missing;
  for (int32_t first = 0; first < world_size && !deadline.passed(); first += kTogether) {
    std::vector<std::string> keys;
    for (int32_t rank = first; rank < std::min(world_size, first + kTogether); ++rank) keys.push_back(rank_key(rank));
    if (store.check(keys, deadline)) continue;
    for (size_t i = 0; i < keys.size() && !deadline.passed(); ++i) {
      if (store.check({keys[i]}, deadline)) continue;
      if (missing.size() == kNamedRanks) return rank_list(missing, true);
      missing.push_back(first + static_cast<int32_t>(i));
    }
  }
  return rank_list(missing, false);
}

// The list of missing ranks, for which the first rank that asks looks. It serves all that ask while no more ranks have
// joined: in a large job all ranks time out at once.
std::string shared_list(Store& store, int32_t world_size, const Deadline& deadline) {
  const std::string key = fmt::format("bp/join/missing/{}", store.add(kCountKey, 0, deadline));
  if (store.add(key + "/asked", 1, deadline) > 1) return store.get(key, deadline);
  const std::string list = missing_ranks(store, world_size, deadline);
  store.set(key, list, deadline);
  return list;
}

// Names the missing ranks after a timeout.
[[noreturn]] void fail_missing_ranks(Store& store, int32_t world_size, const Allowance& allowance) {
  std::string list;
  try {
    list = shared_list(store, world_size, Deadline::after(kDiagnosisNs));
  } catch (const Error& e) {
    if (e.status() != BP_TIMEOUT) throw;  // the rank that looked for them has ended, or the store is busy
  }
  if (list.empty()) {
    fail(BP_TIMEOUT, "not all of {} ranks joined within {} (at {})", world_size, allowance.text(), store.describe());
  }
  fail(BP_TIMEOUT,
       "{} {} of {} did not join within {} (at {}); look at their output for why they did not start, or use a longer "
       "timeout",
       list.find(' ') != std::string::npos ? "ranks" : "rank", list, world_size, allowance.text(), store.describe());
}

[[noreturn]] void refuse(Store& store, const std::string& text, const Deadline& deadline) {
  decline(store, text, deadline);
  throw Error(BP_INVALID, text);
}

void claim_rank(Store& store, int32_t rank, const std::string& identity, const Deadline& deadline) {
  const std::string claim = make_claim(identity);
  const std::string held = store.compare_set(rank_key(rank), "", claim, deadline);
  if (held != claim) refuse(store, duplicate_text(store, rank, identity_of(held), identity), deadline);
}

// The world key holds "4 rank 0 (host, pid 17)" of the first rank.
void compare_world(Store& store, int32_t rank, int32_t world_size, const std::string& identity,
                   const Deadline& deadline) {
  const std::string mine = fmt::format("{} rank {} ({})", world_size, rank, identity);
  const std::string first = store.compare_set(kWorldKey, "", mine, deadline);
  const size_t space = first.find(' ');
  const std::string their_size = first.substr(0, space);
  if (their_size == std::to_string(world_size)) return;
  refuse(store,
         fmt::format("the ranks disagree on the world size: {} was started with {}, rank {} ({}) with {}; start all "
                     "with the same one",
                     space == std::string::npos ? "another rank" : first.substr(space + 1), their_size, rank, identity,
                     world_size),
         deadline);
}

}  // namespace

void join(Store& store, int32_t rank, int32_t world_size, const std::string& identity, Deadline deadline) {
  if (world_size < 1) fail(BP_INVALID, "the world size is {}; give 1 or more", world_size);
  if (rank < 0 || rank >= world_size) {
    refuse(store,
           fmt::format("rank is {}, but the world size is {}; ranks go from 0 to {}", rank, world_size, world_size - 1),
           deadline);
  }
  const Allowance allowance(deadline);
  claim_rank(store, rank, identity, deadline);
  compare_world(store, rank, world_size, identity, deadline);
  if (store.add(kCountKey, 1, deadline) == world_size) store.compare_set(kJoinedKey, "", kComplete, deadline);
  std::string result;
  try {
    result = store.get(kJoinedKey, deadline);
  } catch (const Error& e) {
    if (e.status() != BP_TIMEOUT) throw;
    fail_missing_ranks(store, world_size, allowance);
  }
  if (result != kComplete) throw Error(BP_INVALID, result);
}

bool decline(Store& store, const std::string& why, Deadline deadline) {
  return store.compare_set(kJoinedKey, "", why, deadline) != kComplete;
}

}  // namespace backplane::core
