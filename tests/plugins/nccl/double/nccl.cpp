// SPDX-License-Identifier: Apache-2.0
//
// The functions of NCCL that the plugin calls.
#include <nccl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "operations.hpp"
#include "settings.hpp"
#include "stream.hpp"

using namespace backplane::nccl_double;

namespace {

std::array<std::atomic<uint64_t>, 64> launches;  // by device

// A communicator, owned by its handle and by its operations in streams.
class Comm {
 public:
  Comm(const Id& id, int its_rank, int its_size) : rank(its_rank), size(its_size), segment_(id, its_rank, its_size) {
    const char* const text = std::getenv("BACKPLANE_DOUBLE_FAIL");
    if (text == nullptr) return;
    char* end = nullptr;
    fails_with_ = static_cast<ncclResult_t>(std::strtol(text, &end, 10));
    fails_at_ = std::strtol(*end == '@' ? end + 1 : "1", nullptr, 10);
  }

  const int rank;
  const int size;
  const int device = current_device();
  std::map<int, std::pair<ncclDataType_t, std::vector<std::byte>>> scalars;  // by ncclRedOp_t - ncclNumOps
  int next_op = 1;
  int id_fd = -1;  // in the process that created the id, until all ranks have attached

  ~Comm() { drop_id(); }
  void drop_id() {
    if (id_fd >= 0) ::close(std::exchange(id_fd, -1));
  }

  // A call takes effect in the background: the next queries of the state return ncclInProgress.
  void begin() { in_progress_.store(setting("BACKPLANE_DOUBLE_SLOW", 1)); }

  ncclResult_t state() {
    if (const ncclResult_t error = error_.load(); error != ncclSuccess) return error;
    if (!connects_ || !segment_.complete() || (finalized_.load() && !idle())) return ncclInProgress;
    if (!enter_streams(false)) return ncclInProgress;
    drop_id();
    return in_progress_.load() > 0 && in_progress_.fetch_sub(1) > 0 ? ncclInProgress : ncclSuccess;
  }

  // Whether operations may be started: not while a call takes effect.
  bool ready() { return error_.load() == ncclSuccess && segment_.complete() && in_progress_.load() <= 0; }

  void finalize() {
    finalized_.store(true);
    begin();
  }
  bool finalized() const { return finalized_.load(); }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return turn_ == launched_;
  }

  // Launched operations stop as soon as their streams reach them.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_.store(true);
      changed_.notify_all();
    }
    enter_streams(true);
    for (int turn = 0; entering_.load() > 0; ++turn) {
      if (turn == 5000) violated("ncclCommAbort joins a thread that launches into a stream that stays full");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Waits until the streams have reached them. The real library waits without limit; this one reports a hang.
  void await_stopped() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::seconds(30), [this] { return turn_ == launched_; })) return;
    violated("ncclCommAbort waits for a stream that does not reach the communicator's operations");
  }

  // Launches a group of operations. A communicator runs its launches in order, in any streams.
  void launch(const std::shared_ptr<Comm>& self, Stream& stream, std::vector<Operation> operations) {
    std::unique_lock lock(mutex_);
    const uint64_t turn = launched_++;
    lock.unlock();
    const auto number = static_cast<int64_t>(turn) + 1;
    if (fails_with_ != ncclSuccess && number == fails_at_) error_.store(fails_with_);
    const bool stalls = number == setting("BACKPLANE_DOUBLE_STALL", 0);
    auto kernel = [self, turn, stalls, operations = std::move(operations)] { self->run(turn, stalls, operations); };
    begin();
    ++entering_;
    ++launches[static_cast<size_t>(device)];
    if (const int64_t late = setting("BACKPLANE_DOUBLE_LATE", 0); late > 0) {
      lock.lock();
      late_.emplace_back(&stream, std::move(kernel));
      late_until_ = std::chrono::steady_clock::now() + std::chrono::microseconds(late);
    } else {
      add(stream, std::move(kernel));
    }
  }

 private:
  // Adds late launches to their streams, once it is time or `now`. False: it is not time yet.
  bool enter_streams(bool now) {
    const std::lock_guard lock(mutex_);
    if (!now && !late_.empty() && std::chrono::steady_clock::now() < late_until_) return false;
    for (auto& [stream, kernel] : std::exchange(late_, {})) add(*stream, std::move(kernel));
    return true;
  }

  // Like NCCL's launching thread, which waits while the stream is full.
  void add(Stream& stream, std::function<void()> kernel) {
    stream.add_behind(std::move(kernel), [this] { --entering_; });
  }

  void run(uint64_t turn, bool stalls, const std::vector<Operation>& operations) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, turn, stalls] { return stop_.load() || (turn_ == turn && !stalls); });
    lock.unlock();
    if (!stop_.load() && error_.load() == ncclSuccess) {
      const std::optional<ncclResult_t> result = is_message(operations.front().kind)
                                                     ? run_messages(segment_, rank, operations, stop_)
                                                     : run_collective(segment_, rank, size, operations.front(), stop_);
      if (result && *result != ncclSuccess) error_.store(*result);
    }
    lock.lock();
    ++turn_;
    changed_.notify_all();
  }

  Segment segment_;
  const bool connects_ = setting("BACKPLANE_DOUBLE_CONNECTS", 1) != 0;
  std::atomic<int64_t> in_progress_ = 1;
  std::atomic<ncclResult_t> error_ = ncclSuccess;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> finalized_ = false;
  ncclResult_t fails_with_ = ncclSuccess;
  int64_t fails_at_ = 0;
  uint64_t launched_ = 0;
  std::atomic<int> entering_ = 0;  // launches that are not in their stream yet
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t turn_ = 0;
  std::vector<std::pair<Stream*, std::function<void()>>> late_;
  std::chrono::steady_clock::time_point late_until_;
};

// The descriptors of ids whose rank 0 has not attached, by token.
std::mutex ids_mutex;
std::map<uint64_t, int>& ids() {
  static auto* const map = new std::map<uint64_t, int>;
  return *map;
}

std::atomic<uint64_t> message_launches = 0;  // groups of sends and receives, each of them for one communicator

// The calls of this thread since ncclGroupStart: operations and ncclCommAbort.
struct Called {
  std::shared_ptr<Comm> comm;
  cudaStream_t stream;
  Operation operation;
};
thread_local int group_depth = 0;
thread_local std::vector<Called> called;
thread_local std::vector<std::shared_ptr<Comm>> aborted;

ncclResult_t launch_all() {
  for (const auto& comm : std::exchange(aborted, {})) comm->await_stopped();
  const std::vector<Called> all = std::exchange(called, {});
  std::map<std::pair<Comm*, cudaStream_t>, std::vector<Operation>> messages;
  for (const Called& each : all) {
    if (is_message(each.operation.kind)) {
      messages[{each.comm.get(), each.stream}].push_back(each.operation);
    } else {
      each.comm->launch(each.comm, stream_of(each.stream), {each.operation});
    }
  }
  for (const Called& each : all) {
    const auto found = messages.find({each.comm.get(), each.stream});
    if (found == messages.end()) continue;
    ++message_launches;
    each.comm->launch(each.comm, stream_of(each.stream), std::move(found->second));
    messages.erase(found);
  }
  return all.empty() ? ncclSuccess : ncclInProgress;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Comm> comm;
};

namespace {

ncclResult_t call(ncclComm_t comm, cudaStream_t stream, Operation operation) {
  Comm& c = *comm->comm;
  if (fails()) return ncclUnhandledCudaError;
  if (!c.ready() || device_of(stream) != c.device) return ncclInvalidArgument;
  for (const std::byte* const data : {operation.in, static_cast<const std::byte*>(operation.out)}) {
    if (data == nullptr || operation.count == 0) continue;
    const auto block = block_of(data);
    if (!block) violated("an operation on pageable memory");
    if (!block->is_host && block->device != c.device) violated("an operation on memory of another device");
  }
  if (size_of(operation.dtype) == 0 || (operation.peer < 0 || operation.peer >= c.size)) return ncclInvalidArgument;
  if (operation.count == 0) return ncclSuccess;
  if (operation.op >= ncclNumOps) {
    const auto found = c.scalars.find(operation.op);
    if (found == c.scalars.end() || found->second.first != operation.dtype) return ncclInvalidArgument;
    operation.scalar = found->second.second;
    operation.op = ncclNumOps;
  }
  called.push_back({comm->comm, stream, std::move(operation)});
  return group_depth > 0 ? ncclSuccess : launch_all();
}

const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

}  // namespace

extern "C" {

uint64_t double_launches(int device) { return launches.at(static_cast<size_t>(device)).load(); }
uint64_t double_message_launches() { return message_launches.load(); }

ncclResult_t ncclGetVersion(int* version) {
  *version = static_cast<int>(setting("BACKPLANE_DOUBLE_VERSION", NCCL_VERSION_CODE));
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"no error",         "unhandled cuda error", "system error", "internal error",
                                           "invalid argument", "invalid usage",        "remote error", "in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* unique) {
  Id id{};
  if (fails() || !Segment::make(&id)) return ncclSystemError;
  std::memset(unique, 0, sizeof *unique);
  std::memcpy(unique, &id, sizeof id);
  const std::lock_guard lock(ids_mutex);
  ids()[id.token] = id.fd;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId unique, int rank, ncclConfig_t* config) {
  if (config == nullptr || config->size != sizeof *config || config->magic != 0xcafebeef || config->blocking != 0) {
    return ncclInvalidArgument;  // only non-blocking communicators are supported
  }
  if (fails()) return ncclUnhandledCudaError;
  Id id{};
  std::memcpy(&id, &unique, sizeof id);
  int id_fd = -1;
  if (rank == 0) {
    const std::lock_guard lock(ids_mutex);
    const auto found = ids().find(id.token);
    if (found != ids().end()) id_fd = ids().extract(found).mapped();
  }
  try {
    *comm = new ncclComm{std::make_shared<Comm>(id, rank, size)};
    (*comm)->comm->id_fd = id_fd;
    return ncclInProgress;
  } catch (const std::system_error&) {
    if (id_fd >= 0) ::close(id_fd);
    return ncclSystemError;
  }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->comm->state();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!comm->comm->ready()) return ncclInvalidArgument;
  comm->comm->finalize();
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm->comm->finalized() || !comm->comm->idle()) violated("ncclCommDestroy before ncclCommFinalize is done");
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->comm->stop();
  aborted.push_back(comm->comm);
  delete comm;
  return group_depth > 0 ? ncclSuccess : launch_all();
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  return --group_depth > 0 ? ncclSuccess : launch_all();
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Kind::kAllReduce, bytes(in), bytes(out), count, dtype, op, 0});
}

ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Kind::kReduce, bytes(in), bytes(out), count, dtype, op, root});
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(comm, stream, {Kind::kBroadcast, bytes(in), bytes(out), count, dtype, ncclSum, root});
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(comm, stream, {Kind::kAllGather, bytes(in), bytes(out), count, dtype, ncclSum, 0});
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Kind::kReduceScatter, bytes(in), bytes(out), count, dtype, op, 0});
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, stream, {Kind::kSend, bytes(in), nullptr, count, dtype, ncclSum, peer});
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Kind::kRecv, nullptr, bytes(out), count, dtype, ncclSum, peer});
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t dtype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  if (residence != ncclScalarHostImmediate) return ncclInvalidArgument;
  if (fails()) return ncclUnhandledCudaError;
  Comm& c = *comm->comm;
  *op = static_cast<ncclRedOp_t>(ncclNumOps + c.next_op++);
  c.scalars[*op] = {dtype, {bytes(scalar), bytes(scalar) + size_of(dtype)}};
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return comm->comm->scalars.erase(op) == 1 ? ncclSuccess : ncclInvalidArgument;
}

#ifndef BACKPLANE_DOUBLE_OLD  // the optional functions
ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                          cudaStream_t stream) {
  if (in == out) violated("ncclAlltoAll in place");
  return call(comm, stream, {Kind::kAllToAll, bytes(in), bytes(out), count, dtype, ncclSum, 0});
}
ncclResult_t ncclMemAlloc(void** data, size_t size) {
  return cudaMalloc(data, size) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* data) {
  cudaFree(data);
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t, void** handle) {
  if (!comm->comm->ready()) violated("ncclCommRegister while the communicator is busy");
  *handle = data;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  if (!comm->comm->ready()) violated("ncclCommDeregister while the communicator is busy");
  return ncclSuccess;
}
#endif

}  // extern "C"
