// SPDX-License-Identifier: Apache-2.0
//
// The functions of MPI, except collectives.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "commands.hpp"

#define MPI_FUNCTION __attribute__((visibility("default"))) int

using namespace stub;

namespace {

int number_in_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

void copy_text(const std::string& text, char* to, int* size) {
  std::memcpy(to, text.c_str(), text.size() + 1);
  *size = static_cast<int>(text.size());
}

std::shared_ptr<Comm> make_comm(uint64_t context, std::vector<int> world_ranks, int world_rank) {
  auto comm = std::make_shared<Comm>();
  comm->context = context;
  const auto own = std::find(world_ranks.begin(), world_ranks.end(), world_rank);
  comm->rank = static_cast<int>(own - world_ranks.begin());
  comm->world_ranks = std::move(world_ranks);
  return comm;
}

// With the mutex held.
Handle handle_of_new(World& w, const std::shared_ptr<Comm>& comm) {
  w.comms[value_of(comm.get())] = comm;
  return comm.get();
}

// Passes the communicator to `use`, with the mutex held.
template <typename Use>
int with_comm(const char* function, Handle handle, const Use& use) {
  if (const int code = enter(function); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const std::shared_ptr<Comm> comm = w.comm_of(handle);
  return comm == nullptr ? kBadComm : use(w, comm);
}

std::list<Packet>::iterator find_message(World& w, const Comm& comm, int source, int tag) {
  w.advance();
  auto& arrived = w.mailbox.arrived;
  return std::find_if(arrived.begin(), arrived.end(), [&comm, source, tag](const Packet& packet) {
    return matches(packet, comm.context, {source, tag});
  });
}

uint64_t bytes_of(const Status& status) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, status.internal, sizeof bytes);
  return bytes;
}

template <typename Count>
int isend(const char* function, const void* data, Count count, Handle type, int to, int tag, Handle comm,
          Handle* request) {
  return begin(function, comm, tag, request, [=](Request& r) {
    if (size_of(type) == 0) return kBadType;
    r.send(to, data, static_cast<size_t>(count) * size_of(type));
    return kSuccess;
  });
}

template <typename Count>
int imrecv(const char* function, void* data, Count count, Handle type, Handle* message, Handle* request) {
  if (const int code = enter(function); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const auto found = w.messages.find(value_of(*message));
  if (found == w.messages.end()) return kBadMessage;
  if (size_of(type) == 0) return kBadType;
  auto made = std::make_unique<Request>();
  made->function = function;
  made->comm = found->second->comm;
  made->receives.push_back(
      {found->second->packet.source, data, static_cast<size_t>(count) * size_of(type), /*has_come=*/true});
  made->packets.push_back(std::move(found->second->packet.data));
  w.messages.erase(found);
  *message = nullptr;
  *request = w.add(std::move(made));
  return kSuccess;
}

// A call of MPI_Comm_create_group.
class InProgress {
 public:
  explicit InProgress(int tag) : tag_(tag) {
    const std::lock_guard lock(world().mutex);
    world().creation_tags.insert(tag_);
  }
  ~InProgress() {
    const std::lock_guard lock(world().mutex);
    world().creation_tags.erase(world().creation_tags.find(tag_));
  }
  InProgress(const InProgress&) = delete;
  InProgress& operator=(const InProgress&) = delete;

 private:
  const int tag_;
};

}  // namespace

extern "C" {

MPI_FUNCTION MPI_Get_library_version(char* text, int* size) {
  copy_text(setting("version", "Stub 1.0, of the tests"), text, size);
  return enter("MPI_Get_library_version");
}

MPI_FUNCTION MPI_Initialized(int* flag) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  *flag = w.is_initialized ? 1 : 0;
  return kSuccess;
}

MPI_FUNCTION MPI_Finalized(int* flag) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  *flag = w.is_finalized ? 1 : 0;
  return kSuccess;
}

MPI_FUNCTION MPI_Init_thread(int* /*argc*/, char*** /*argv*/, int /*wanted*/, int* provided) {
  if (const int code = enter("MPI_Init_thread"); code != kSuccess) return code;
  World& w = world();
  std::shared_ptr<Comm> all;
  {
    const std::lock_guard lock(w.mutex);
    w.rank = number_in_environment("PMI_RANK", 0);
    w.size = number_in_environment("PMI_SIZE", 1);
    w.level = std::atoi(setting("level", std::to_string(kMultiple)).c_str());
    w.tag_ub = std::atoi(setting("tag_ub", std::to_string(1 << 30)).c_str());
    w.mailbox.open(w.rank, w.size);
    std::vector<int> ranks(static_cast<size_t>(w.size));
    std::iota(ranks.begin(), ranks.end(), 0);
    all = make_comm(hash_of("world"), ranks, w.rank);
    w.comms[kWorld] = all;
    w.comms[kSelf] = make_comm(hash_of("self"), {w.rank}, w.rank);
  }
  meet(all, hash_of("init"));
  const std::lock_guard lock(w.mutex);
  w.is_initialized = true;
  *provided = w.level;
  return kSuccess;
}

MPI_FUNCTION MPI_Query_thread(int* provided) {
  if (const int code = enter("MPI_Query_thread"); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  *provided = w.level;
  return kSuccess;
}

MPI_FUNCTION MPI_Finalize() {
  if (const int code = enter("MPI_Finalize"); code != kSuccess) return code;
  World& w = world();
  std::shared_ptr<Comm> all;
  {
    const std::lock_guard lock(w.mutex);
    all = w.comms[kWorld];
  }
  meet(all, hash_of("finalize"));
  const std::lock_guard lock(w.mutex);
  w.is_finalized = true;
  return kSuccess;
}

MPI_FUNCTION MPI_Comm_rank(Handle handle, int* rank) {
  return with_comm("MPI_Comm_rank", handle, [rank](World& /*w*/, const std::shared_ptr<Comm>& comm) {
    *rank = comm->rank;
    return kSuccess;
  });
}

MPI_FUNCTION MPI_Comm_size(Handle handle, int* size) {
  return with_comm("MPI_Comm_size", handle, [size](World& /*w*/, const std::shared_ptr<Comm>& comm) {
    *size = comm->size();
    return kSuccess;
  });
}

MPI_FUNCTION MPI_Comm_get_attr(Handle handle, int key, void* value, int* found) {
  return with_comm("MPI_Comm_get_attr", handle, [=](World& w, const std::shared_ptr<Comm>& /*comm*/) {
    if (key != kTagUb) return kBadKey;
    const int* const attribute = &w.tag_ub;
    std::memcpy(value, &attribute, sizeof attribute);
    *found = 1;
    return kSuccess;
  });
}

// Predefined ones, whose numbers differ in MPICH 5.0.2, are refused.
MPI_FUNCTION MPI_Comm_set_errhandler(Handle handle, Handle handler) {
  return with_comm("MPI_Comm_set_errhandler", handle, [handler](World& /*w*/, const std::shared_ptr<Comm>& /*comm*/) {
    return value_of(handler) < kPredefinedEnd ? kBadHandler : kSuccess;
  });
}

MPI_FUNCTION MPI_Comm_group(Handle handle, Handle* group) {
  return with_comm("MPI_Comm_group", handle, [group](World& w, const std::shared_ptr<Comm>& comm) {
    auto made = std::make_unique<Group>(Group{comm->world_ranks});
    *group = made.get();
    w.groups.emplace(value_of(*group), std::move(made));
    return kSuccess;
  });
}

MPI_FUNCTION MPI_Group_incl(Handle handle, int count, const int* ranks, Handle* group) {
  if (const int code = enter("MPI_Group_incl"); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const auto all = w.groups.find(value_of(handle));
  if (all == w.groups.end()) return kBadComm;
  auto made = std::make_unique<Group>();
  for (int i = 0; i < count; ++i) {
    if (ranks[i] < 0 || static_cast<size_t>(ranks[i]) >= all->second->world_ranks.size()) return kBadRank;
    made->world_ranks.push_back(all->second->world_ranks[static_cast<size_t>(ranks[i])]);
  }
  *group = made.get();
  w.groups.emplace(value_of(*group), std::move(made));
  return kSuccess;
}

MPI_FUNCTION MPI_Group_free(Handle* group) {
  if (const int code = enter("MPI_Group_free"); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  if (w.groups.erase(value_of(*group)) == 0) return kBadComm;
  *group = nullptr;
  return kSuccess;
}

// Blocks until all members have come, as MPI's does. Groups with common members may be made at the same time only with
// different tags.
MPI_FUNCTION MPI_Comm_create_group(Handle handle, Handle group, int tag, Handle* made) {
  const InProgress in_progress(tag);
  std::shared_ptr<Comm> comm;
  const auto make = [&comm, group, tag](World& w, const std::shared_ptr<Comm>& /*parent*/) {
    if (w.creation_tags.count(tag) > 1) return kTagInUse;
    const auto members = w.groups.find(value_of(group));
    if (members == w.groups.end()) return kBadComm;
    std::string name = "create " + std::to_string(tag);
    for (const int rank : members->second->world_ranks) name += " " + std::to_string(rank);
    name += " #" + std::to_string(w.creations[name]++);
    comm = make_comm(hash_of(name), members->second->world_ranks, w.rank);
    return comm->rank < comm->size() ? kSuccess : kBadRank;
  };
  if (const int code = with_comm("MPI_Comm_create_group", handle, make); code != kSuccess) return code;
  meet(comm, hash_of("meet " + std::to_string(comm->context)));
  World& w = world();
  const std::lock_guard lock(w.mutex);
  *made = handle_of_new(w, comm);
  return kSuccess;
}

MPI_FUNCTION MPI_Comm_dup(Handle handle, Handle* made) {
  return with_comm("MPI_Comm_dup", handle, [made](World& w, const std::shared_ptr<Comm>& comm) {
    const std::string name = "copy " + std::to_string(comm->context) + " #" + std::to_string(comm->copies++);
    *made = handle_of_new(w, make_comm(hash_of(name), comm->world_ranks, w.rank));
    return kSuccess;
  });
}

MPI_FUNCTION MPI_Comm_free(Handle* handle) {
  return with_comm("MPI_Comm_free", *handle, [handle](World& w, const std::shared_ptr<Comm>& /*comm*/) {
    w.comms.erase(value_of(*handle));
    *handle = nullptr;
    return kSuccess;
  });
}

MPI_FUNCTION MPI_Iprobe(int source, int tag, Handle handle, int* found, Status* status) {
  return with_comm("MPI_Iprobe", handle, [=](World& w, const std::shared_ptr<Comm>& comm) {
    const auto packet = find_message(w, *comm, source, tag);
    *found = packet != w.mailbox.arrived.end() ? 1 : 0;
    if (*found != 0) describe(*packet, status);
    return kSuccess;
  });
}

MPI_FUNCTION MPI_Improbe(int source, int tag, Handle handle, int* found, Handle* message, Status* status) {
  return with_comm("MPI_Improbe", handle, [=](World& w, const std::shared_ptr<Comm>& comm) {
    const auto packet = find_message(w, *comm, source, tag);
    *found = packet != w.mailbox.arrived.end() ? 1 : 0;
    if (*found == 0) return kSuccess;
    describe(*packet, status);
    auto taken = std::make_unique<Message>(Message{comm, std::move(*packet)});
    w.mailbox.arrived.erase(packet);
    *message = taken.get();
    w.messages.emplace(value_of(*message), std::move(taken));
    return kSuccess;
  });
}

MPI_FUNCTION MPI_Test(Handle* request, int* done, Status* status) {
  if (const int code = enter("MPI_Test"); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  *done = 1;
  if (value_of(*request) == kNull) return kSuccess;
  const auto found = w.requests.find(value_of(*request));
  if (found == w.requests.end()) return kBadRequest;
  if (takes_step()) {
    const auto end = std::chrono::steady_clock::now() + kStep;
    while (std::chrono::steady_clock::now() < end) w.advance();
    *done = 0;
    return kSuccess;
  }
  int result = kSuccess;
  *done = w.test(found->second.get(), &result, status) ? 1 : 0;
  if (*done != 0) *request = handle_of(kNull);
  return result;
}

MPI_FUNCTION MPI_Isend(const void* data, int count, Handle type, int to, int tag, Handle comm, Handle* request) {
  return isend("MPI_Isend", data, count, type, to, tag, comm, request);
}

MPI_FUNCTION MPI_Irecv(void* data, int count, Handle type, int from, int tag, Handle handle, Handle* request) {
  return with_comm("MPI_Irecv", handle, [=](World& w, const std::shared_ptr<Comm>& comm) {
    if (size_of(type) == 0) return kBadType;
    if (from != kAnySource && (from < 0 || from >= comm->size())) return kBadRank;
    auto made = std::make_unique<Request>();
    const size_t bytes = static_cast<size_t>(count) * size_of(type);
    made->function = bytes > kEager ? "MPI_Irecv long" : "MPI_Irecv";
    made->comm = comm;
    made->context = comm->context;
    made->wanted = Wanted{from, tag};
    made->receive(from, data, bytes);
    *request = w.add(std::move(made));
    return kSuccess;
  });
}

// A message that has matched is received nevertheless.
MPI_FUNCTION MPI_Cancel(Handle* request) {
  if (const int code = enter("MPI_Cancel"); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const auto found = w.requests.find(value_of(*request));
  if (found == w.requests.end()) return kBadRequest;
  Request& cancelled = *found->second;
  cancelled.is_cancel_asked = true;
  if (!cancelled.wanted) return kSuccess;
  cancelled.wanted.reset();
  cancelled.receives.front().has_come = true;
  cancelled.is_cancelled = true;
  cancelled.status.internal[2] = 1;
  return kSuccess;
}

MPI_FUNCTION MPI_Test_cancelled(const Status* status, int* flag) {
  if (const int code = enter("MPI_Test_cancelled"); code != kSuccess) return code;
  *flag = status->internal[2];
  return kSuccess;
}

MPI_FUNCTION MPI_Imrecv(void* data, int count, Handle type, Handle* message, Handle* request) {
  return imrecv("MPI_Imrecv", data, count, type, message, request);
}

MPI_FUNCTION MPI_Get_elements_x(const Status* status, Handle type, int64_t* count) {
  if (const int code = enter("MPI_Get_elements_x"); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  if (size_of(type) == 0) return kBadType;
  *count = static_cast<int64_t>(bytes_of(*status) / size_of(type));
  return kSuccess;
}

MPI_FUNCTION MPI_Ibarrier(Handle comm, Handle* request) {
  return begin("MPI_Ibarrier", comm, -1, request, [](Request& r) {
    for (int rank = 0; rank < r.comm->size(); ++rank) {
      r.send(rank, nullptr, 0);
      r.receive(rank, nullptr, 0);
    }
    return kSuccess;
  });
}
}
