// SPDX-License-Identifier: Apache-2.0
#include "meeting.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "peers.hpp"
#include "process.hpp"

namespace backplane::shm {
namespace {

constexpr int64_t kLook = 50'000'000;  // nanoseconds; how often a waiting init looks at what no futex tells
constexpr size_t kTextSize = 256;
constexpr const char* kFile = "shm.file";
constexpr const char* kTrouble = "shm.trouble";
constexpr int kAttempts = 2;

std::string key_of(int attempt) { return "shm." + std::to_string(attempt); }

// What rank 0 says in the store.
struct Address {
  uint64_t magic = kMagic;
  Token token{};
  int32_t world_size = 0;
  int32_t failed = BP_OK;  // else rank 0 gave up with this status; `path` says why
  uint64_t pid_namespace = 0;
  uint64_t heap_size = 0;
  std::array<char, 64> boot_id{};
  std::array<char, kTextSize> path{};
};

// Why a rank cannot join.
struct Trouble {
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

// What the failure of one rank is to the others.
int32_t status_for_others(int32_t status) {
  const bool is_theirs = status == BP_UNSUPPORTED || status == BP_RESOURCE || status == BP_INVALID;
  return is_theirs ? status : BP_PEER_LOST;
}

size_t file_size(int32_t world_size, uint64_t heap) {
  return Layout(world_size).size() + static_cast<size_t>(world_size) * heap;
}

void require_few(int32_t world_size) {
  if (world_size <= kMostRanks) return;
  throw sdk::Failure(BP_UNSUPPORTED, "shm joins at most " + std::to_string(kMostRanks) + " ranks of one host, not " +
                                         std::to_string(world_size) + "; choose gloo or zmq");
}

template <typename Said>
std::string_view bytes_of(const Said& said) {
  return {reinterpret_cast<const char*>(&said), sizeof said};
}

void check_abort(const sdk::Context& context) {
  if (context.host.abort_requested()) throw sdk::Failure(BP_CANCELLED, "the group is being aborted");
}

// Waits until the word changes or it is time to look around.
void await_change(const sdk::Context& context, std::atomic<uint32_t>& word, uint32_t value,
                  const sdk::Deadline& deadline) {
  const int64_t left = deadline.left_ns();
  if (left != 0) futex_wait(word, value, left < 0 ? kLook : std::min(left, kLook));
  check_abort(context);
}

int32_t first_missing(const View& view, Peers& peers) {
  const auto ranks = static_cast<int32_t>(view.layout().ranks());
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (!peers.has_come(rank)) return rank;
  }
  return -1;
}

[[noreturn]] void fail_late(const View& view, Peers& peers) {
  const int32_t missing = first_missing(view, peers);
  if (missing < 0) throw sdk::Failure(BP_TIMEOUT, "shm: the ranks did not come together within the time for init");
  throw sdk::Failure(BP_TIMEOUT, "shm: " + named(missing) + " did not come to the group within the time for init",
                     missing);
}

// Throws if one that has come is gone again.
void check_present(const View& view, Peers& peers) {
  peers.look_for_dead();
  const auto ranks = static_cast<int32_t>(view.layout().ranks());
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (peers.has_come(rank) && !peers.is_present(rank)) throw sdk::Failure(peers.failure(rank));
  }
}

void provide_own(const View& view, const sdk::Context& context) {
  provide(reinterpret_cast<std::byte*>(&view.line(context.rank, 0)), kSteps * sizeof(Line), "collectives");
  provide(view.slot(context.rank, 0), kSteps * kSlotSize, "collectives");
}

void let_go(const View& view, Go go) {
  view.header().go.store(static_cast<uint32_t>(go));
  futex_wake_all(view.header().go);
}

// ---- rank 0

// What a rank has said under this key; empty if none has.
std::string said_in(const sdk::Context& context, const char* key) {
  try {
    return context.host.store_get(key, 0);
  } catch (const sdk::Failure& why) {
    if (why.status() == BP_TIMEOUT) return {};
    throw;
  }
}

// Throws what a rank that cannot join has said.
void check_trouble(const sdk::Context& context) {
  const std::string said = said_in(context, kTrouble);
  Trouble trouble;
  if (said.size() != sizeof trouble) return;
  std::memcpy(&trouble, said.data(), sizeof trouble);
  throw sdk::Failure(status_for_others(trouble.status), text_of(trouble.text), trouble.rank);
}

enum class Outcome { kComplete, kAgain };

Outcome await_others(const sdk::Context& context, Segment& segment, const sdk::Deadline& deadline, bool last_attempt) {
  const View& view = segment.view();
  const auto others = static_cast<uint32_t>(context.world_size - 1);
  for (int look = 0;; ++look) {
    const uint32_t arrived = view.header().arrived.load();
    if (arrived >= others) return Outcome::kComplete;
    if (look > 0 && look % 2 == 0) {  // store operations; rare, since most come sooner
      check_trouble(context);
      if (!last_attempt && !said_in(context, kFile).empty()) return Outcome::kAgain;
    }
    check_present(view, segment.peers());
    if (deadline.passed()) fail_late(view, segment.peers());
    await_change(context, view.header().arrived, arrived, deadline);
  }
}

void publish(const sdk::Context& context, int attempt, const Address& address) {
  context.host.store_set(key_of(attempt), bytes_of(address));
}

Address own_address(const sdk::Context& context) {
  Address address;
  address.token = random_token();
  address.world_size = context.world_size;
  address.pid_namespace = pid_namespace();
  address.heap_size = heap_size(Layout(context.world_size).size(), context.world_size);
  set_text(address.boot_id, boot_id());
  return address;
}

std::unique_ptr<Segment> host_segment(const sdk::Context& context, int fd, int attempt, Address address,
                                      const sdk::Deadline& deadline) {
  auto segment = std::make_unique<Segment>(fd, address.heap_size, context);
  Header& header = segment->view().header();
  header.magic = kMagic;
  header.token = address.token;
  header.world_size = context.world_size;
  segment->enter(context);
  publish(context, attempt, address);
  try {
    if (await_others(context, *segment, deadline, attempt > 0) == Outcome::kAgain) {
      let_go(segment->view(), Go::kAgain);
      return nullptr;
    }
  } catch (const sdk::Failure& why) {
    segment->peers().abort(why);
    let_go(segment->view(), why.status() == BP_UNSUPPORTED ? Go::kRefused : Go::kWait);
    throw;
  }
  // All have mapped it. Before they hold locks in it (cross_memory.hpp): who looks for orphans, in one of these
  // processes, opens and closes what has a name, and would end them.
  if (attempt > 0) ::unlink(text_of(address.path).c_str());
  let_go(segment->view(), Go::kGo);
  return segment;
}

std::unique_ptr<Segment> host(const sdk::Context& context, const sdk::Deadline& deadline) {
  Address address = own_address(context);
  const size_t size = file_size(context.world_size, address.heap_size);
  int attempt = 0;
  try {
    {
      const sdk::Descriptor memory = make_anonymous(size);
      set_text(address.path, "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(memory.get()));
      if (auto segment = host_segment(context, memory.get(), attempt, address, deadline)) return segment;
    }
    attempt = 1;
    const NamedFile file(size);
    address.token = random_token();
    set_text(address.path, file.path());
    return host_segment(context, file.get(), attempt, address, deadline);
  } catch (const sdk::Failure& why) {
    address.failed = status_for_others(why.status());
    set_text(address.path, why.what());
    sdk::guarded(nullptr, [&] {  // spares the others their wait, if the store still does its work
      for (; attempt < kAttempts; ++attempt) publish(context, attempt, address);
      return BP_OK;
    });
    throw;
  }
}

// ---- the others

Address address_of(const sdk::Context& context, int attempt, const sdk::Deadline& deadline) {
  std::string value;
  try {
    value = context.host.store_get(key_of(attempt), deadline.left_ns());
  } catch (const sdk::Failure& why) {
    if (why.status() != BP_TIMEOUT) throw;
    throw sdk::Failure(BP_TIMEOUT, "shm: rank 0 did not come to the group within the time for init", 0);
  }
  Address address;
  if (value.size() != sizeof address) throw sdk::Failure(BP_INTERNAL, "shm: the segment's address is damaged", 0);
  std::memcpy(&address, value.data(), sizeof address);
  if (address.magic != kMagic) throw sdk::Failure(BP_INVALID, "shm: rank 0 has another version of this plugin", 0);
  if (address.failed != BP_OK) {
    throw sdk::Failure(status_for_others(address.failed), "shm: rank 0 gave up: " + text_of(address.path), 0);
  }
  if (address.heap_size > kMostHeaps || address.heap_size % kPage != 0) {
    throw sdk::Failure(BP_INTERNAL, "shm: the segment's address is damaged", 0);
  }
  if (address.world_size != context.world_size) {
    throw sdk::Failure(BP_INVALID,
                       "shm: rank 0 is in a group of " + std::to_string(address.world_size) + " ranks, this one of " +
                           std::to_string(context.world_size),
                       0);
  }
  return address;
}

void require_same_host(const sdk::Context& context, const Address& address) {
  if (text_of(address.boot_id) == boot_id() && !boot_id().empty()) return;
  throw sdk::Failure(BP_UNSUPPORTED,
                     "shm joins processes of one host, but " + named(context.rank) +
                         " runs on another one than rank 0 (their boot ids differ); choose gloo or zmq",
                     context.rank);
}

bool is_the_one(const View& view, const Address& address) {
  const Header& header = view.header();
  return header.magic == kMagic && header.token == address.token && header.world_size == address.world_size;
}

Go await_go(const sdk::Context& context, Segment& segment, const sdk::Deadline& deadline) {
  std::atomic<uint32_t>& go = segment.view().header().go;
  for (;;) {
    if (const auto said = static_cast<Go>(go.load()); said != Go::kWait) return said;
    try {
      check_present(segment.view(), segment.peers());
    } catch (const sdk::Failure&) {
      if (static_cast<Go>(go.load()) == Go::kWait) throw;  // else it was let go, and has already ended its group
    }
    if (deadline.passed()) fail_late(segment.view(), segment.peers());
    await_change(context, go, static_cast<uint32_t>(Go::kWait), deadline);
  }
}

// With this rank in it. Null: it cannot be opened, rank 0 will offer another one.
std::unique_ptr<Segment> open_segment(const sdk::Context& context, int attempt, const Address& address) {
  std::unique_ptr<Segment> segment;
  if (attempt > 0 || address.pid_namespace == pid_namespace()) {
    const sdk::Descriptor fd = open_shared(text_of(address.path), file_size(context.world_size, address.heap_size));
    if (fd) segment = std::make_unique<Segment>(fd.get(), address.heap_size, context);
  }
  if (!segment || !is_the_one(segment->view(), address)) {
    if (attempt > 0) {
      throw sdk::Failure(BP_UNSUPPORTED,
                         "shm: " + named(context.rank) + " can open neither rank 0's memory nor " +
                             text_of(address.path) + "; do the ranks share /dev/shm and a user?",
                         context.rank);
    }
    context.host.store_set(kFile, "wanted");
    return nullptr;
  }
  segment->enter(context);
  return segment;
}

// Until it returns, only the store can tell rank 0 that this rank will not come; from then on the segment does.
std::unique_ptr<Segment> find_segment(const sdk::Context& context, int attempt, const sdk::Deadline& deadline) {
  try {
    const Address address = address_of(context, attempt, deadline);
    require_same_host(context, address);
    return open_segment(context, attempt, address);
  } catch (const sdk::Failure& why) {
    Trouble trouble{why.status(), context.rank, {}};
    set_text(trouble.text, why.what());
    sdk::guarded(nullptr, [&] {
      context.host.store_set(kTrouble, bytes_of(trouble));
      return BP_OK;
    });
    throw;
  }
}

std::unique_ptr<Segment> join(const sdk::Context& context, const sdk::Deadline& deadline) {
  for (int attempt = 0;; ++attempt) {
    auto segment = find_segment(context, attempt, deadline);
    if (!segment) continue;
    Header& header = segment->view().header();
    header.arrived.fetch_add(1);
    futex_wake_all(header.arrived);
    const Go said = await_go(context, *segment, deadline);
    if (said == Go::kGo) return segment;
    if (said == Go::kRefused) throw sdk::Failure(BP_UNSUPPORTED, segment->peers().failure(0).what());
  }
}

// Does every rank list this group?
bool is_everyones(const View& view, uint64_t id) {
  for (int32_t rank = 0; rank < static_cast<int32_t>(view.layout().ranks()); ++rank) {
    const auto& listed = view.member(rank).elders;
    if (std::find(listed.begin(), listed.end(), id) == listed.end()) return false;
  }
  return true;
}

}  // namespace

void Segment::enter(const sdk::Context& context) {
  provide_own(view_, context);
  Member& mine = view_.member(context.rank);
  mine.has_room = has_room(view_.layout().ranks() * pools_.own()->size()) ? 1 : 0;
  for (size_t i = 0; i < elders_.size(); ++i) mine.elders[i] = elders_[i].id;
  if (peers_.enter()) return;
  throw sdk::Failure(BP_INVALID, "two processes say that they are " + named(context.rank) + " of the group",
                     context.rank);
}

void Segment::learn(const sdk::Context& context) {
  peers_.learn_fence();
  for (int32_t rank = 0; rank < context.world_size; ++rank) {
    if (view_.member(rank).has_room != 1) pools_.own()->forgo();
  }
  std::sort(elders_.begin(), elders_.end(), [](const Elder& a, const Elder& b) { return a.id < b.id; });
  for (Elder& elder : elders_) {
    if (is_everyones(view_, elder.id)) pools_.add(std::move(elder));
  }
  elders_.clear();
  uint64_t id = 0;
  std::memcpy(&id, view_.header().token.data(), sizeof id);
  if (id != 0) become_elder(id, context, pools_.own());
}

void try_segment(int32_t world_size) {
  require_few(world_size);
  const size_t size = Layout(world_size).size();
  const sdk::Descriptor memory = make_anonymous(file_size(world_size, heap_size(size, world_size)));
  provide(Mapping(memory.get(), size).data(), kPage, "ranks that are to meet");
}

std::unique_ptr<Segment> meet(const sdk::Context& context) {
  require_few(context.world_size);
  const sdk::Deadline deadline = sdk::Deadline::after(context.timeout_ns);
  check_abort(context);
  std::unique_ptr<Segment> segment = context.rank == 0 ? host(context, deadline) : join(context, deadline);
  segment->learn(context);
  return segment;
}

}  // namespace backplane::shm
