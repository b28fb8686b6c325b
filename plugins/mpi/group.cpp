// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "backplane/base/host.hpp"
#include "collectives.hpp"
#include "exchange.hpp"

namespace backplane::mpi {
namespace {

constexpr uint64_t kPooledBytes = 64 << 20;

// A rank's process in MPI's world, as it describes itself to the others.
struct WorldMember {
  int rank = 0;
  int size = 0;
  std::string abi;
  std::string job;   // of the launcher
  std::string host;  // and its processes' numbers
  pid_t process = 0;
  uint64_t number = 0;         // of the group, as rank 0 has drawn it
  uint32_t creation_tags = 0;  // reserved for the group

  std::string text() const {
    return std::to_string(rank) + "\n" + std::to_string(size) + "\n" + abi + "\n" + job + "\n" + host + "\n" +
           std::to_string(process) + "\n" + std::to_string(number) + "\n" + std::to_string(creation_tags) + "\n";
  }
  static WorldMember parse(const std::string& text) {
    WorldMember member;
    std::istringstream lines(text);
    lines >> member.rank >> member.size;
    lines.ignore();
    std::getline(lines, member.abi);
    std::getline(lines, member.job);
    std::getline(lines, member.host);
    lines >> member.process >> member.number >> member.creation_tags;
    return member;
  }
};

// Processes with equal identities know each other by number.
std::string process_space() {
  std::array<char, 64> space{};
  const bool known = ::readlink("/proc/self/ns/pid", space.data(), space.size() - 1) > 0;
  return base::boot_id() + "/" + (known ? space.data() : "");
}

std::string key_of(int32_t rank) { return "mpi/" + std::to_string(rank); }

// The failure names the rank that does not come, which the store does not know.
std::string await_member(const sdk::Context& context, int32_t rank, const base::Deadline& deadline) {
  try {
    return context.host.store_get(key_of(rank), deadline.left_ns());
  } catch (const sdk::Failure& why) {
    throw sdk::Failure(why.status(), "mpi: waiting for rank " + std::to_string(rank) + ": " + why.what(), rank,
                       why.native_code());
  }
}

sdk::Failure no_common_world(World& world, int32_t rank, const std::string& why) {
  return {BP_UNSUPPORTED,
          "mpi: this rank and rank " + std::to_string(rank) + " are not in one world of MPI: " + why +
              "; start all ranks with one mpirun of the library in use (" + world.text() + ")",
          rank};
}

void check_same_world(World& world, const WorldMember& own, int32_t rank, const WorldMember& member) {
  if (member.abi != own.abi) throw no_common_world(world, rank, "its MPI has the ABI of " + member.abi);
  if (member.job != own.job) throw no_common_world(world, rank, "it belongs to another job of the launcher");
  if (member.size != own.size) {
    throw no_common_world(
        world, rank, "its world has " + std::to_string(member.size) + " processes, not " + std::to_string(own.size));
  }
  if (member.rank == own.rank) {
    throw no_common_world(world, rank, "both are rank " + std::to_string(own.rank) + " there");
  }
}

constexpr std::array kMessages = {sdk::moves(BP_SEND), sdk::moves(BP_RECV)};
constexpr auto kMessagesOnly = sdk::pointers(kMessages);

}  // namespace

// Frees the communicators unless a group has taken them.
struct Group::Members {
  // Exchanges the descriptions of the processes, and checks that they are in one world of MPI. The other ranks wait for
  // that of rank 0 before they give theirs.
  Members(World& world, const sdk::Context& context) : api(world.api()) {
    const base::Deadline deadline = base::Deadline::after(context.timeout_ns);
    WorldMember first;
    if (context.rank == 0) {
      first.number = world.creation_tags().draw(world.rank());
    } else {
      first = WorldMember::parse(await_member(context, 0, deadline));
    }
    tags.emplace(world.creation_tags(), first.number);
    const WorldMember own{world.rank(),    world.size(), world.api().abi(), launcher_job(),
                          process_space(), ::getpid(),   first.number,      tags->bits()};
    context.host.store_set(key_of(context.rank), own.text());
    for (int32_t rank = 0; rank < context.world_size; ++rank) {
      WorldMember member = own;
      if (rank != context.rank) {
        member = rank == 0 ? first : WorldMember::parse(await_member(context, rank, deadline));
        check_same_world(world, own, rank, member);
      }
      common_tags &= member.creation_tags;
      world_ranks.push_back(member.rank);
      processes.push_back(member.host == own.host ? member.process : 0);
    }
    std::vector<pid_t> known;
    std::copy_if(processes.begin(), processes.end(), std::back_inserter(known), [](pid_t pid) { return pid != 0; });
    world.add_processes(known);
  }
  ~Members() {
    for (const Comm comm : {own, internal, user}) {
      try {
        if (comm != Comm{}) api.free(comm);
      } catch (const sdk::Failure&) {
        // It is kept.
      }
    }
  }
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  Api& api;
  std::optional<CreationTags::Reservation> tags;
  uint32_t common_tags = UINT32_MAX;  // those that all members have reserved
  std::vector<int> world_ranks;       // in the order of the group's ranks
  std::vector<pid_t> processes;
  Comm user{};
  Comm internal{};
  Comm own{};
};

Group::Group(World& world, const sdk::Context& context, const Members& members)
    : use_(world),
      native_(context.options.boolean("native")),
      processes_(members.processes),
      state_{world,
             context.rank,
             context.world_size,
             members.user,
             members.internal,
             members.own,
             std::chrono::nanoseconds(context.options.integer("direct"))},
      progress_(world.progress()) {
  state_.pool = std::make_shared<sdk::BlockPool>(kPooledBytes);
  const bp_host* const host = context.host.get();
  state_.reduce = static_cast<const bp_reduce_api*>(host->extension(host->ctx, BP_EXT_REDUCE));
}

std::unique_ptr<Group> Group::start(const sdk::Context& context) {
  World& world = World::get(context.options.text("library"), context.world_size == 1);
  const World::Use use(world);
  context.host.log(BP_LOG_INFO, "mpi: " + world.text());
  if (world.api().tag_upper_bound() < kMaxTag) {
    throw sdk::Failure(BP_UNSUPPORTED, "mpi: tags of " + world.api().version() + " end at " +
                                           std::to_string(world.api().tag_upper_bound()) + "; " +
                                           std::to_string(kMaxTag) +
                                           " is needed; use another MPI or another of its transports");
  }
  world.abandoned().reap(world.api());
  Members members(world, context);
  members.user = world.api().create(members.world_ranks, members.tags->choose(members.common_tags));
  members.internal = world.api().duplicate(members.user);
  members.own = world.api().duplicate(members.user);
  std::unique_ptr<Group> group(new Group(world, context, members));
  members.user = members.internal = members.own = Comm{};
  return group;
}

// Communicators of a group that has failed are kept: MPI may still use them.
Group::~Group() {
  constexpr int kPolls = 16;  // let MPI pass on messages that it holds
  Api& api = state_.api();
  probes_.finish();
  try {
    if (api.finalized() || state_.failure.raised()) return;
    for (int i = 0; i < kPolls; ++i) api.progress();
    state_.world.abandoned().reap(api);
    for (const Comm comm : {state_.own, state_.internal, state_.user}) api.free(comm);
  } catch (const std::exception&) {
    // The communicators are kept.
  }
}

std::unique_ptr<sdk::Work> Group::submit(const bp_op& op) {
  if (BP_HAS(&op, message) && op.message != nullptr && state_.failure.raised()) probes_.drop(op.message);
  state_.failure.check();
  state_.world.abandoned().reap(state_.api());
  try {
    if (op.kind == BP_SEND) return send(state_, op);
    if (op.kind == BP_RECV) return receive(state_, op);
    return exchanges(state_, op) ? exchange(state_, op) : collective(state_, op);
  } catch (const sdk::Failure& failure) {
    throw state_.with_rank(failure);
  }
}

void Group::abort(const sdk::Failure& why) noexcept {
  if (why.status() == BP_PEER_LOST) {
    const bool is_rank = why.peer_rank() >= 0 && why.peer_rank() < state_.world_size;
    if (!is_rank || processes_[static_cast<size_t>(why.peer_rank())] == 0) state_.world.report_lost_elsewhere();
  }
  state_.failure.raise_by_core(why);
  if (why.status() == BP_PEER_LOST) revoke();
  state_.world.progress().hurry();
}

// MPI then ends the requests that were given up, and their memory is freed. Other ranks lose the group as well.
void Group::revoke() noexcept {
  try {
    for (const Comm comm : {state_.user, state_.internal, state_.own}) state_.api().revoke(comm);
  } catch (const std::exception&) {
    // The requests keep their memory.
  }
}

const void* Group::extension(std::string_view id) {
  if (id == BP_EXT_NOTIFY) return sdk::notify_table();
  return id == BP_EXT_PROBE ? probes_.table() : nullptr;
}

std::span<const bp_capability* const> Group::capabilities() const noexcept {
  return native_ ? std::span<const bp_capability* const>() : kMessagesOnly;
}

}  // namespace backplane::mpi
