// SPDX-License-Identifier: Apache-2.0
#include "segment.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "backplane/sdk/peer_failures.hpp"
#include "cross_memory.hpp"
#include "peers.hpp"
#include "process.hpp"

namespace backplane::shm {
namespace {

constexpr int64_t kCheckInterval = 50'000'000;  // ns; interval of checks for events without a futex
constexpr size_t kTextSize = 256;
constexpr const char* kFileKey = "shm.file";
constexpr const char* kJoinFailureKey = "shm.join_failure";
constexpr int kAttempts = 2;

std::string key_of(int attempt) { return "shm." + std::to_string(attempt); }

// Published by rank 0 in the store.
struct SegmentAddress {
  uint64_t magic = kMagic;
  Token token{};
  int32_t world_size = 0;
  int32_t failed = BP_OK;  // otherwise rank 0 has failed with this status; `path` holds the reason
  uint64_t pid_namespace = 0;
  uint64_t heap_size = 0;
  uint64_t staging = 0;
  std::array<char, 64> boot_id{};
  std::array<char, kTextSize> path{};
};

// Published by a rank that cannot join.
struct JoinFailure {
  int32_t status = BP_OK;
  int32_t rank = -1;
  std::array<char, kTextSize> text{};
};

template <size_t N>
void set_text(std::array<char, N>& to, const std::string& text) {
  to = {};
  std::memcpy(to.data(), text.data(), std::min(text.size(), N - 1));
}
template <size_t N>
std::string text_of(const std::array<char, N>& from) {
  return {from.data(), strnlen(from.data(), N)};
}

// The status that a failure of one rank has on the others.
int32_t status_for_others(int32_t status) {
  const bool is_theirs = status == BP_UNSUPPORTED || status == BP_RESOURCE || status == BP_INVALID;
  return is_theirs ? status : BP_PEER_LOST;
}

size_t file_size(const Layout& layout, uint64_t heap) { return layout.size() + layout.ranks() * heap; }

uint64_t default_staging(int32_t world_size) {
  return Staging::limited(staging_for(is_amd_host(), Topology::of_host().second_level_cache()), world_size);
}

// The bytes of staging that this rank's options ask for.
uint64_t staging_of(const sdk::Context& context) {
  const auto wanted = static_cast<uint64_t>(context.options.integer("staging"));
  if (wanted > 0) return std::clamp(std::bit_floor(wanted), Staging::kLeast, Staging::kMost);
  return default_staging(context.world_size);
}

std::string mebibytes(size_t bytes) {
  const size_t tenths = (bytes * 10 + (size_t{1} << 20) - 1) >> 20;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MiB";
}

void check_world_size(int32_t world_size) {
  if (world_size <= kMaxRanks) return;
  throw sdk::Failure(BP_UNSUPPORTED, "shm supports at most " + std::to_string(kMaxRanks) + " ranks, not " +
                                         std::to_string(world_size) + "; choose gloo or zmq");
}

template <typename Value>
std::string_view bytes_of(const Value& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

void check_abort(const sdk::Context& context) {
  if (context.host.abort_requested()) throw sdk::Failure(BP_CANCELLED, "the group is being aborted");
}

// Waits until the word changes, or for the next periodic check.
void await_change(const sdk::Context& context, std::atomic<uint32_t>& word, uint32_t value,
                  const sdk::Deadline& deadline) {
  const int64_t left = deadline.left_ns();
  if (left != 0) futex_wait(word, value, left < 0 ? kCheckInterval : std::min(left, kCheckInterval));
  check_abort(context);
}

int32_t first_missing(const View& view, Peers& peers) {
  const auto ranks = static_cast<int32_t>(view.layout().ranks());
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (!peers.has_joined(rank)) return rank;
  }
  return -1;
}

[[noreturn]] void throw_timeout(const View& view, Peers& peers) {
  const int32_t missing = first_missing(view, peers);
  if (missing < 0) throw sdk::Failure(BP_TIMEOUT, "shm: init timed out before all ranks had joined");
  throw sdk::not_joined(missing, "the timeout of init has passed");
}

// Throws if a rank has left again.
void check_present(const View& view, Peers& peers) {
  peers.check_liveness();
  const auto ranks = static_cast<int32_t>(view.layout().ranks());
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (peers.has_joined(rank) && !peers.is_present(rank)) throw sdk::Failure(peers.failure(rank));
  }
}

void populate_own(const View& view, const sdk::Context& context) {
  populate(reinterpret_cast<std::byte*>(&view.line(context.rank, 0)), kSteps * sizeof(Line), "collectives");
  populate(view.slot(context.rank, 0), view.layout().staging().slots * kSlotSize, "collectives");
}

void signal_start(const View& view, StartSignal go) {
  view.header().go.store(static_cast<uint32_t>(go));
  futex_wake_all(view.header().go);
}

// ---- rank 0

// The value of a store key; empty if it is not set.
std::string read_key(const sdk::Context& context, const char* key) {
  try {
    return context.host.store_get(key, 0);
  } catch (const sdk::Failure& why) {
    if (why.status() == BP_TIMEOUT) return {};
    throw;
  }
}

// Throws the failure that a rank has published.
void check_join_failure(const sdk::Context& context) {
  const std::string value = read_key(context, kJoinFailureKey);
  JoinFailure failure;
  if (value.size() != sizeof failure) return;
  std::memcpy(&failure, value.data(), sizeof failure);
  throw sdk::Failure(status_for_others(failure.status), text_of(failure.text), failure.rank);
}

enum class Outcome { kComplete, kRetry };

Outcome await_others(const sdk::Context& context, Segment& segment, const sdk::Deadline& deadline, bool last_attempt) {
  const View& view = segment.view();
  const auto others = static_cast<uint32_t>(context.world_size - 1);
  for (int check = 0;; ++check) {
    const uint32_t arrived = view.header().arrived.load();
    if (arrived >= others) return Outcome::kComplete;
    if (check > 0 && check % 2 == 0) {  // store operations, rarely needed
      check_join_failure(context);
      if (!last_attempt && !read_key(context, kFileKey).empty()) return Outcome::kRetry;
    }
    check_present(view, segment.peers());
    if (deadline.passed()) throw_timeout(view, segment.peers());
    await_change(context, view.header().arrived, arrived, deadline);
  }
}

void publish(const sdk::Context& context, int attempt, const SegmentAddress& address) {
  context.host.store_set(key_of(attempt), bytes_of(address));
}

SegmentAddress own_address(const sdk::Context& context) {
  SegmentAddress address;
  address.token = random_token();
  address.world_size = context.world_size;
  address.pid_namespace = pid_namespace();
  address.staging = staging_of(context);
  address.heap_size = heap_size(Layout(context.world_size, address.staging).size(), context.world_size);
  set_text(address.boot_id, boot_id());
  return address;
}

std::unique_ptr<Segment> share_segment(const sdk::Context& context, int fd, int attempt, SegmentAddress address,
                                       const sdk::Deadline& deadline) {
  auto segment = std::make_unique<Segment>(fd, address.staging, address.heap_size, context);
  Header& header = segment->view().header();
  header.magic = kMagic;
  header.token = address.token;
  header.world_size = context.world_size;
  segment->join(context);
  publish(context, attempt, address);
  try {
    if (await_others(context, *segment, deadline, attempt > 0) == Outcome::kRetry) {
      signal_start(segment->view(), StartSignal::kRetry);
      return nullptr;
    }
  } catch (const sdk::Failure& why) {
    segment->peers().abort(why);
    signal_start(segment->view(), why.status() == BP_UNSUPPORTED ? StartSignal::kRejected : StartSignal::kWait);
    throw;
  }
  // All have mapped it. Remove the name before locks are held on the file (cross_memory.hpp): the search for orphans in
  // one of these processes would open and close it, and so release them.
  if (attempt > 0) ::unlink(text_of(address.path).c_str());
  signal_start(segment->view(), StartSignal::kStart);
  return segment;
}

std::unique_ptr<Segment> create_segment(const sdk::Context& context, const sdk::Deadline& deadline) {
  SegmentAddress address = own_address(context);
  const size_t size = file_size(Layout(context.world_size, address.staging), address.heap_size);
  int attempt = 0;
  try {
    {
      const sdk::Descriptor memory = make_anonymous(size);
      set_text(address.path, "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(memory.get()));
      if (auto segment = share_segment(context, memory.get(), attempt, address, deadline)) return segment;
    }
    attempt = 1;
    const NamedFile file(size);
    address.token = random_token();
    set_text(address.path, file.path());
    return share_segment(context, file.get(), attempt, address, deadline);
  } catch (const sdk::Failure& why) {
    address.failed = status_for_others(why.status());
    set_text(address.path, why.what());
    sdk::guarded(nullptr, [&] {  // ends the wait of the others if the store still works
      for (; attempt < kAttempts; ++attempt) publish(context, attempt, address);
      return BP_OK;
    });
    throw;
  }
}

// ---- the others

SegmentAddress address_of(const sdk::Context& context, int attempt, const sdk::Deadline& deadline) {
  std::string value;
  try {
    value = context.host.store_get(key_of(attempt), deadline.left_ns());
  } catch (const sdk::Failure& why) {
    if (why.status() != BP_TIMEOUT) throw;
    throw sdk::not_joined(0, "the timeout of init has passed");
  }
  SegmentAddress address;
  if (value.size() != sizeof address) throw sdk::Failure(BP_INTERNAL, "shm: malformed segment address in the store", 0);
  std::memcpy(&address, value.data(), sizeof address);
  if (address.magic != kMagic) throw sdk::Failure(BP_INVALID, "shm: rank 0 uses another version of this plugin", 0);
  if (address.failed != BP_OK) {
    throw sdk::Failure(status_for_others(address.failed), "shm: rank 0 failed: " + text_of(address.path), 0);
  }
  if (address.heap_size > kMaxHeapBytes || address.heap_size % kPage != 0 || !Staging::is_valid(address.staging)) {
    throw sdk::Failure(BP_INTERNAL, "shm: malformed segment address in the store", 0);
  }
  if (address.world_size != context.world_size) {
    throw sdk::Failure(BP_INVALID,
                       "shm: rank 0 is in a group of " + std::to_string(address.world_size) + " ranks, this one of " +
                           std::to_string(context.world_size),
                       0);
  }
  return address;
}

void require_same_host(const sdk::Context& context, const SegmentAddress& address) {
  if (text_of(address.boot_id) == boot_id() && !boot_id().empty()) return;
  throw sdk::Failure(BP_UNSUPPORTED,
                     "shm requires all ranks on one host, but " + named(context.rank) +
                         " runs on another host than rank 0 (their boot ids differ); choose gloo or zmq",
                     context.rank);
}

bool is_expected(const View& view, const SegmentAddress& address) {
  const Header& header = view.header();
  return header.magic == kMagic && header.token == address.token && header.world_size == address.world_size;
}

StartSignal await_start(const sdk::Context& context, Segment& segment, const sdk::Deadline& deadline) {
  std::atomic<uint32_t>& go = segment.view().header().go;
  for (;;) {
    if (const auto value = static_cast<StartSignal>(go.load()); value != StartSignal::kWait) return value;
    try {
      check_present(segment.view(), segment.peers());
    } catch (const sdk::Failure&) {
      if (static_cast<StartSignal>(go.load()) == StartSignal::kWait)
        throw;  // otherwise the start was signalled, and that rank has already left its group
    }
    if (deadline.passed()) throw_timeout(segment.view(), segment.peers());
    await_change(context, go, static_cast<uint32_t>(StartSignal::kWait), deadline);
  }
}

// Opens the segment and registers this rank. Returns null if it cannot be opened; rank 0 will offer another one.
std::unique_ptr<Segment> open_segment(const sdk::Context& context, int attempt, const SegmentAddress& address) {
  std::unique_ptr<Segment> segment;
  if (attempt > 0 || address.pid_namespace == pid_namespace()) {
    const Layout layout(context.world_size, address.staging);
    const sdk::Descriptor fd = open_shared(text_of(address.path), file_size(layout, address.heap_size));
    if (fd) segment = std::make_unique<Segment>(fd.get(), address.staging, address.heap_size, context);
  }
  if (!segment || !is_expected(segment->view(), address)) {
    if (attempt > 0) {
      throw sdk::Failure(BP_UNSUPPORTED,
                         "shm: " + named(context.rank) + " can open neither rank 0's memory nor " +
                             text_of(address.path) + "; do the ranks share /dev/shm and a user?",
                         context.rank);
    }
    context.host.store_set(kFileKey, "wanted");
    return nullptr;
  }
  segment->join(context);
  return segment;
}

// Until this returns, only the store can tell rank 0 that this rank fails; afterwards the segment does.
std::unique_ptr<Segment> find_segment(const sdk::Context& context, int attempt, const sdk::Deadline& deadline) {
  try {
    const SegmentAddress address = address_of(context, attempt, deadline);
    require_same_host(context, address);
    return open_segment(context, attempt, address);
  } catch (const sdk::Failure& why) {
    JoinFailure failure{why.status(), context.rank, {}};
    set_text(failure.text, why.what());
    sdk::guarded(nullptr, [&] {
      context.host.store_set(kJoinFailureKey, bytes_of(failure));
      return BP_OK;
    });
    throw;
  }
}

std::unique_ptr<Segment> join_segment(const sdk::Context& context, const sdk::Deadline& deadline) {
  for (int attempt = 0;; ++attempt) {
    auto segment = find_segment(context, attempt, deadline);
    if (!segment) continue;
    Header& header = segment->view().header();
    header.arrived.fetch_add(1);
    futex_wake_all(header.arrived);
    const StartSignal value = await_start(context, *segment, deadline);
    if (value == StartSignal::kStart) return segment;
    if (value == StartSignal::kRejected) throw sdk::Failure(BP_UNSUPPORTED, segment->peers().failure(0).what());
  }
}

// Whether every rank lists this group.
bool all_list(const View& view, uint64_t id) {
  for (int32_t rank = 0; rank < static_cast<int32_t>(view.layout().ranks()); ++rank) {
    const auto& listed_location = view.member(rank).older_groups;
    if (std::find(listed_location.begin(), listed_location.end(), id) == listed_location.end()) return false;
  }
  return true;
}

}  // namespace

void Segment::join(const sdk::Context& context) {
  populate_own(view_, context);
  Member& mine = view_.member(context.rank);
  mine.can_map_heaps = can_map_heaps(view_.layout().ranks() * pools_.own()->size()) ? 1 : 0;
  mine.may_read = read_limits(cma_of(context.options), is_amd_host(), true) ? 1 : 0;
  for (size_t i = 0; i < older_groups_.size(); ++i) mine.older_groups[i] = older_groups_[i].id;
  if (peers_.join()) return;
  throw sdk::Failure(BP_INVALID, "two processes claim to be " + named(context.rank) + " of the group", context.rank);
}

void Segment::learn(const sdk::Context& context) {
  peers_.agree_on_membarrier();
  for (int32_t rank = 0; rank < context.world_size; ++rank) {
    if (view_.member(rank).can_map_heaps != 1) pools_.own()->disable();
  }
  std::sort(older_groups_.begin(), older_groups_.end(),
            [](const OlderGroup& a, const OlderGroup& b) { return a.id < b.id; });
  for (OlderGroup& older_group : older_groups_) {
    if (all_list(view_, older_group.id)) pools_.add(std::move(older_group));
  }
  older_groups_.clear();
  uint64_t id = 0;
  std::memcpy(&id, view_.header().token.data(), sizeof id);
  if (id != 0) register_group(id, context, pools_.own());
}

Layout default_layout(int32_t world_size) { return {world_size, default_staging(world_size)}; }

std::string describe_memory(const Layout& layout) {
  return "shared memory: " + mebibytes(layout.initial_memory()) + ", with messages between all ranks up to " +
         mebibytes(layout.max_memory()) + ", and what programs allocate";
}

void check_segment(int32_t world_size) {
  check_world_size(world_size);
  const Layout layout = default_layout(world_size);
  const sdk::Descriptor memory = make_anonymous(file_size(layout, heap_size(layout.size(), world_size)));
  populate(Mapping(memory.get(), layout.size()).data(), kPage, "a test page");
}

std::unique_ptr<Segment> attach(const sdk::Context& context) {
  check_world_size(context.world_size);
  const sdk::Deadline deadline = sdk::Deadline::after(context.timeout_ns);
  check_abort(context);
  std::unique_ptr<Segment> segment =
      context.rank == 0 ? create_segment(context, deadline) : join_segment(context, deadline);
  segment->learn(context);
  return segment;
}

}  // namespace backplane::shm
