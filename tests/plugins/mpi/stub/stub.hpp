// SPDX-License-Identifier: Apache-2.0
//
// A small MPI for tests, with the standard ABI of MPI 5: the functions that plugins/mpi resolves, for processes of one
// host. The environment says where a process is:
//   PMI_RANK, PMI_SIZE         its rank and the number of processes; 0 and 1 if unset
//   BACKPLANE_STUB_DIRECTORY   a directory of the world, for messages; needed if there is more than one process
//   BACKPLANE_STUB             commands (commands.hpp)
//
// Like a real MPI, it moves data only inside its calls, and reads and writes the memory of a request until that is
// complete. Unlike one, it checks every handle that it is given.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace stub {

using Handle = void*;
using Bytes = std::vector<std::byte>;

struct Status {
  int source;
  int tag;
  int error;
  int internal[5];  // the first two: the number of bytes; the third: whether it was cancelled
};

// Values of the standard ABI.
constexpr uintptr_t kNull = 0x180;  // MPI_REQUEST_NULL
constexpr uintptr_t kWorld = 0x101;
constexpr uintptr_t kSelf = 0x102;
constexpr int kAnySource = -1;
constexpr int kAnyTag = -2;
constexpr int kTagUb = 501;
constexpr int kMultiple = 4096;
constexpr uintptr_t kInPlace = 1;
constexpr uintptr_t kPredefinedEnd = 0x1000;  // handles of MPI are below

// Larger messages are read from the program's memory after the call that starts them.
constexpr size_t kEager = 4096;

// Much longer than a call that finds nothing.
constexpr std::chrono::microseconds kStep{250};

// Error codes. Their texts are in commands.cpp.
enum Code {
  kSuccess,
  kBadComm,
  kBadType,
  kBadOp,
  kBadRequest,
  kBadRank,
  kBadMessage,
  kBadKey,
  kTruncated,
  kTagInUse,
  kBadHandler,
  kCommanded
};

inline Handle handle_of(uintptr_t value) { return reinterpret_cast<Handle>(value); }
inline uintptr_t value_of(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }

struct Packet {
  uint64_t context = 0;  // of the communicator
  int source = 0;        // rank in the communicator
  int tag = 0;
  Bytes data;
};

// Messages between processes: files of the world's directory, in order per sender and receiver. A send never blocks.
class Mailbox {
 public:
  void open(int rank, int size);
  void send(int to, const Packet& packet, const void* data, size_t bytes);
  void receive();  // moves what has come to `arrived`

  std::list<Packet> arrived;

 private:
  std::string name(int from, int to, uint64_t number) const;

  std::string directory_;
  int rank_ = 0;
  std::vector<uint64_t> sent_;
  std::vector<uint64_t> received_;
};

struct Comm;

// A message that a probe has taken.
struct Message {
  std::shared_ptr<Comm> comm;
  Packet packet;
};

struct Comm {
  uint64_t context = 0;  // of its messages; its collectives have the next one
  std::vector<int> world_ranks;
  int rank = 0;
  int collectives = 0;  // begun
  int copies = 0;       // made

  int size() const { return static_cast<int>(world_ranks.size()); }
};

struct Group {
  std::vector<int> world_ranks;
};

struct Outgoing {
  int to;
  const void* data;
  size_t bytes;
};
struct Incoming {
  int from;
  void* data;  // NULL: to `packets` only
  size_t bytes;
  bool has_come = false;
};

// The message that a receive matches: kAnySource and kAnyTag match any.
struct Wanted {
  int source;
  int tag;
};

// An operation in progress: what is sent and received, and then done.
struct Request {
  std::string function;
  std::shared_ptr<Comm> comm;
  uint64_t context = 0;
  int tag = 0;
  std::vector<Outgoing> sends;
  bool is_sent = false;
  std::vector<Incoming> receives;
  std::optional<Wanted> wanted;  // MPI_Irecv, until a message has matched
  bool is_cancelled = false;
  bool is_cancel_asked = false;
  Status status = {};                                   // of MPI_Irecv
  std::vector<Bytes> packets;                           // of `receives`
  std::vector<std::pair<const void*, size_t>> numbers;  // counts and displacements, which stay in use; sizes in bytes
  std::function<void(const std::vector<Bytes>&)> finish;
  int result = kSuccess;

  void send(int to, const void* data, size_t bytes) { sends.push_back({to, data, bytes}); }
  void receive(int from, void* data, size_t bytes) { receives.push_back({from, data, bytes}); }
};

// The state of the process. All of it is guarded by the mutex.
struct World {
  std::mutex mutex;
  bool is_initialized = false;
  bool is_finalized = false;
  int rank = 0;
  int size = 1;
  int level = 0;
  int tag_ub = 0;
  Mailbox mailbox;
  std::map<uintptr_t, std::shared_ptr<Comm>> comms;
  std::map<uintptr_t, std::unique_ptr<Group>> groups;
  std::map<uintptr_t, std::unique_ptr<size_t>> types;  // derived ones; their sizes
  std::map<uintptr_t, std::unique_ptr<Message>> messages;
  std::map<uintptr_t, std::unique_ptr<Request>> requests;
  std::vector<Request*> order;  // of `requests`, oldest first
  std::map<std::string, int> creations;
  std::multiset<int> creation_tags;  // of the calls of MPI_Comm_create_group in progress

  std::shared_ptr<Comm> comm_of(Handle handle);
  // Lets all requests send and receive.
  void advance();
  Handle add(std::unique_ptr<Request> request);
  // Whether the request is complete. It is then removed, and the other two are set.
  bool test(Request* request, int* result, Status* status);
};

World& world();

// The size of a type in bytes; 0 if it is none. With the mutex held.
size_t size_of(Handle type);
// into[i] = into[i] op from[i]. False if the type has no such operation.
bool combine(Handle type, Handle op, void* into, const void* from, size_t count);
bool has_operation(Handle type, Handle op);

// Whether a packet is for a receive with this context.
bool matches(const Packet& packet, uint64_t context, const Wanted& wanted);
void describe(const Packet& packet, Status* status);

// A number that processes derive from equal texts.
uint64_t hash_of(const std::string& text);
// Blocks until all members have called it with the same context.
void meet(const std::shared_ptr<Comm>& comm, uint64_t context);

// Makes a request: `build` adds what it sends and receives, and returns a code. Collectives: tag < 0.
int begin(const char* function, Handle comm, int tag, Handle* request, const std::function<int(Request&)>& build);

}  // namespace stub
