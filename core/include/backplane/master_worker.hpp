// SPDX-License-Identifier: Apache-2.0
//
// Master-worker mode: rank 0 drives the others. Buffers live on the workers; the master makes them, runs functions on
// them and collectives between them, in one order, and gets results and errors. torch.distributed's init_master_worker
// as a mode of RPC.
//
//     backplane::register_command("scale", [](backplane::Distributed<float> x, float by) {
//       for (float& value : x.local()) value *= by;
//     });
//     if (auto master = backplane::init_master_worker()) {  // the workers stay in there until the master has ended
//       auto x = master->make<float>(1000, 1.0F);
//       master->run("scale", x, 2.0F);
//       master->all_reduce(x);
//       std::vector<float> sum = master->read(x, 1);
//     }
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "backplane/distributed.hpp"
#include "backplane/rpc.hpp"

namespace backplane {
namespace detail {

// A worker's side: its buffers, and whose turn it is. The master's: whether it has ended.
class CommandState {
 public:
  static CommandState& own() {
    static CommandState* const instance = new CommandState;  // threads may use it while the process ends
    return *instance;
  }

  void start(const ProcessGroup& workers) {
    const std::lock_guard lock(mutex_);
    workers_.emplace(workers);
    buffers_.clear();
    skipped_.clear();
    next_ = 0;
    ended_ = false;
  }
  // Blocks until command `number` may begin: all before it have ended, or will never run. Throws Status::kCancelled if
  // it is not to run itself.
  void begin(uint64_t number) {
    const rpc::detail::Waiting waiting;
    std::unique_lock lock(mutex_);
    for (;;) {
      if (ended_ || number < next_ || skipped_.count(number) > 0 || rpc::cancelled()) {
        pass_over(number);
        fail(Status::kCancelled, "the master waits for this command no more");
      }
      if (!running_ && number == next_) break;
      changed_.wait_for(lock, kLook);  // nothing wakes it for a cancel
    }
    running_ = true;
  }
  void finish() {
    const std::lock_guard lock(mutex_);
    running_ = false;
    ++next_;
    advance();
  }
  // Command `number` will not come, or need not run any more. One that runs, or has, is left alone.
  void skip(uint64_t number) {
    const std::lock_guard lock(mutex_);
    pass_over(number);
  }
  // On a worker: commands that have not begun never will. On the master: lets hold go.
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  // On the master: blocks until end.
  void hold() {
    const rpc::detail::Waiting waiting;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
  }

  std::vector<std::byte>& buffer(uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(id);
    if (found == buffers_.end()) fail(Status::kInvalid, "there is no such buffer on this worker; it was dropped");
    return found->second;
  }
  void make(uint64_t id, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    buffers_[id].resize(bytes);
  }
  void drop(uint64_t id) {
    const std::lock_guard lock(mutex_);
    buffers_.erase(id);
  }
  ProcessGroup& workers() { return *workers_; }

 private:
  static constexpr std::chrono::milliseconds kLook{100};

  void pass_over(uint64_t number) {
    if (number < next_ || (running_ && number == next_)) return;
    skipped_.insert(number);
    if (!running_) advance();
  }
  void advance() {
    while (skipped_.erase(next_) > 0) ++next_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<ProcessGroup> workers_;
  std::map<uint64_t, std::vector<std::byte>> buffers_;
  std::set<uint64_t> skipped_;  // of those from next_ on
  uint64_t next_ = 0;
  bool running_ = false;  // command next_ is
  bool ended_ = false;
};

// A command's place in the order, for as long as it runs.
class Turn {
 public:
  explicit Turn(uint64_t number) { CommandState::own().begin(number); }
  ~Turn() { CommandState::own().finish(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
};

template <typename Function, typename R, typename... Parameters>
auto in_turn(Function function, std::type_identity<std::tuple<Parameters...>>, std::type_identity<R>) {
  return [function = std::move(function)](uint64_t number, const Parameters&... arguments) -> R {
    const Turn turn(number);
    return function(arguments...);
  };
}

}  // namespace detail

// N elements on each worker; the master and its functions hand this name of them around.
template <Element T>
struct Distributed {
  uint64_t id = 0;
  uint64_t count = 0;  // N

  // On a worker: its elements.
  std::span<T> local() const {
    std::vector<std::byte>& bytes = detail::CommandState::own().buffer(id);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  MSGPACK_DEFINE(id, count)
};

// A function that a master may run on workers, under a name of its own, registered on all ranks before
// init_master_worker. Arguments and results are those of rpc::register_function.
template <typename Function>
void register_command(const std::string& name, Function function) {
  using Signature = rpc::detail::Signature<Function>;
  rpc::register_function(name, detail::in_turn(std::move(function), std::type_identity<typename Signature::Arguments>(),
                                               std::type_identity<typename Signature::Result>()));
}

// The workers, as the master sees them. They are ranks 1 to workers(); commands begin on each in the order in which
// they were given. Those that return futures do so at once, or, when kMostOpen commands of a worker have not ended,
// when the first of them has. What goes wrong on a worker is an Error with its rank; a worker that died is named by all
// that waits for it. For one thread.
class Master {
 public:
  static constexpr size_t kMostOpen = 64;

  Master(rpc::Worker self, ProcessGroup group)
      : self_(std::move(self)), group_(std::move(group)), lines_(static_cast<size_t>(self_.world_size())) {}
  Master(Master&&) = default;
  Master& operator=(Master&&) = delete;
  // Lets the workers go, without a word about what failed.
  ~Master() {
    if (self_.get() == nullptr) return;
    try {
      shutdown();
    } catch (...) {
      // There is nobody to tell.
    }
  }

  int workers() const { return self_.world_size() - 1; }

  // Runs a command on one worker, or on all. One that is cancelled before its turn never runs.
  template <typename R = void, typename... Arguments>
  rpc::Future<R> run_on(int worker, const std::string& command, const Arguments&... arguments) {
    Line& line = line_of(worker);
    while (line.open.size() >= kMostOpen) {
      line.open.front().wait();
      line.open.pop_front();
    }
    const auto future =
        self_.rpc_async<R>({worker, Timeout::zero()}, command, line.next, arguments...);  // throws: none was spent
    const uint64_t number = line.next++;
    line.open.push_back(future.then([self = self_, worker, number](const rpc::Future<R>& ended) {
      if (has_failed(ended)) skip(self, worker, number, kTries);
    }));
    return future;
  }
  template <typename R = void, typename... Arguments>
  std::vector<rpc::Future<R>> run(const std::string& command, const Arguments&... arguments) {
    std::vector<rpc::Future<R>> ends;
    for (int worker = 1; worker <= workers(); ++worker) ends.push_back(run_on<R>(worker, command, arguments...));
    return ends;
  }
  // The same, and waits: results by worker.
  template <typename R, typename... Arguments>
  std::vector<R> ask(const std::string& command, const Arguments&... arguments) {
    std::vector<R> results;
    for (const auto& end : run<R>(command, arguments...)) results.push_back(end.wait());
    return results;
  }

  template <Element T>
  Distributed<T> make(uint64_t count, T value = T()) {
    const Distributed<T> made{++last_id_, count};
    watch(run("backplane.make", made.id, count * sizeof(T), bytes_of(value)));
    return made;
  }
  template <Element T>
  void drop(const Distributed<T>& buffer) {
    watch(run("backplane.drop", buffer.id));
  }
  // Blocks until it is there.
  template <Element T>
  void write(const Distributed<T>& buffer, int worker, std::vector<T> values) {
    if (values.size() != buffer.count) detail::fail(Status::kInvalid, "write: the buffer has another size");
    run_on(worker, "backplane.write", buffer.id, as_bytes(std::move(values))).wait();
  }
  template <Element T>
  std::vector<T> read(const Distributed<T>& buffer, int worker) {
    const auto bytes = run_on<rpc::Array<uint8_t>>(worker, "backplane.read", buffer.id).wait();
    std::vector<T> values(bytes.size() / sizeof(T));
    if (bytes.size() > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  // Between the workers, in place. `root` is a worker.
  template <Element T>
  std::vector<rpc::Future<void>> all_reduce(const Distributed<T>& buffer, ReduceOp op = ReduceOp::kSum) {
    return run("backplane.all_reduce", buffer.id, type_of<T>(), static_cast<uint32_t>(op));
  }
  template <Element T>
  std::vector<rpc::Future<void>> broadcast(const Distributed<T>& buffer, int root) {
    return run("backplane.broadcast", buffer.id, type_of<T>(), root - 1);
  }
  template <Element T>
  std::vector<rpc::Future<void>> reduce(const Distributed<T>& buffer, int root, ReduceOp op = ReduceOp::kSum) {
    return run("backplane.reduce", buffer.id, type_of<T>(), root - 1, static_cast<uint32_t>(op));
  }

  // Waits for all commands and lets the workers go. Throws what a make or drop failed with, or the leaving itself; then
  // the workers are gone as well. Twice is fine.
  void shutdown() {
    if (std::exchange(ended_, true)) return;
    for (Line& line : lines_) {
      for (const auto& end : line.open) end.wait();
    }
    watch({});
    detail::CommandState::own().end();
    attempt([this] { self_.shutdown(); });
    attempt([] {
      if (is_initialized()) destroy_process_group();
    });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // The commands that one worker was given.
  struct Line {
    uint64_t next = 0;
    std::deque<rpc::Future<void>> open;  // those that may not have ended
  };
  static constexpr int kTries = 3;

  Line& line_of(int worker) {
    if (worker < 1 || worker > workers()) {
      detail::fail(Status::kInvalid,
                   "there is no worker " + std::to_string(worker) + "; they are 1 to " + std::to_string(workers()));
    }
    return lines_[static_cast<size_t>(worker)];
  }
  template <typename R>
  static bool has_failed(const rpc::Future<R>& ended) {
    try {
      ended.wait();
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }
  // A command that failed may never have come to its turn: the next ones must not wait for it.
  static void skip(const rpc::Worker& self, int worker, uint64_t number, int tries) {
    try {
      self.rpc_async(worker, "backplane.skip", number)
          .then([self, worker, number, tries](const rpc::Future<void>& ended) {
            if (tries > 1 && has_failed(ended)) skip(self, worker, number, tries - 1);
          });
    } catch (const Error&) {
      // This worker is leaving, or that one has gone.
    }
  }
  template <typename Function>
  void attempt(const Function& function) {
    try {
      function();
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
  }
  // Commands whose futures the caller does not get. The first failure is kept for shutdown.
  void watch(const std::vector<rpc::Future<void>>& ends) {
    watched_.insert(watched_.end(), ends.begin(), ends.end());
    std::erase_if(watched_, [this](const auto& end) {
      if (!end.done()) return false;
      attempt([&end] { end.wait(); });
      return true;
    });
  }

  template <Element T>
  static uint32_t type_of() {
    return static_cast<uint32_t>(dtype_of<T>);
  }
  template <typename T>
  static std::vector<uint8_t> bytes_of(const T& value) {
    std::vector<uint8_t> bytes(sizeof(T));
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  template <typename T>
  static rpc::Array<uint8_t> as_bytes(std::vector<T> values) {
    auto kept = std::make_shared<std::vector<T>>(std::move(values));
    return rpc::Array<uint8_t>(reinterpret_cast<uint8_t*>(kept->data()), kept->size() * sizeof(T), kept);
  }

  rpc::Worker self_;
  ProcessGroup group_;
  std::vector<Line> lines_;  // by rank
  std::vector<rpc::Future<void>> watched_;
  std::exception_ptr failure_;
  uint64_t last_id_ = 0;
  bool ended_ = false;
};

namespace detail {

inline Buffer whole(uint64_t id, uint32_t dtype) {
  std::vector<std::byte>& bytes = CommandState::own().buffer(id);
  return Buffer(bytes.data(), bytes.size() / bp_dtype_size(dtype), static_cast<DType>(dtype));
}

inline void register_commands() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_command("backplane.make", [](uint64_t id, uint64_t bytes, const std::vector<uint8_t>& value) {
      CommandState::own().make(id, bytes);
      std::vector<std::byte>& made = CommandState::own().buffer(id);
      for (uint64_t at = 0; at < bytes; at += value.size()) std::memcpy(made.data() + at, value.data(), value.size());
    });
    register_command("backplane.drop", [](uint64_t id) { CommandState::own().drop(id); });
    register_command("backplane.write", [](uint64_t id, const rpc::Array<uint8_t>& values) {
      std::vector<std::byte>& bytes = CommandState::own().buffer(id);
      if (bytes.size() != values.size()) fail(Status::kInvalid, "write: the buffer has another size");
      if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    });
    register_command("backplane.read", [](uint64_t id) {
      const std::vector<std::byte>& bytes = CommandState::own().buffer(id);
      const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
      return rpc::Array<uint8_t>(std::vector<uint8_t>(data, data + bytes.size()));
    });
    register_command("backplane.all_reduce", [](uint64_t id, uint32_t dtype, uint32_t op) {
      CommandState::own().workers().all_reduce(whole(id, dtype), static_cast<ReduceOp>(op));
    });
    register_command("backplane.broadcast", [](uint64_t id, uint32_t dtype, int root) {
      CommandState::own().workers().broadcast(whole(id, dtype), root);
    });
    register_command("backplane.reduce", [](uint64_t id, uint32_t dtype, int root, uint32_t op) {
      const Buffer buffer = whole(id, dtype);
      ProcessGroup& workers = CommandState::own().workers();
      workers.reduce(buffer, workers.rank() == root ? buffer : Buffer(), root, static_cast<ReduceOp>(op));
    });
    rpc::register_function("backplane.skip", [](uint64_t number) { CommandState::own().skip(number); });
    rpc::register_function("backplane.hold", [] { CommandState::own().hold(); });
  });
}

// The worker of a rank of `group`, the default group, which is given up if that fails.
inline rpc::Worker join_master(ProcessGroup& group, const std::string& agent) {
  try {
    if (group.world_size() < 2) fail(Status::kInvalid, "init_master_worker needs a master and a worker");
    std::vector<int> ranks(static_cast<size_t>(group.world_size() - 1));
    std::iota(ranks.begin(), ranks.end(), 1);
    ProcessGroup workers = group.new_group(ranks, "workers");
    CommandState::own().start(workers);
    rpc::RpcOptions joining;
    joining.backend = agent;
    return rpc::init_rpc(group.rank() == 0 ? "master" : "worker" + std::to_string(group.rank()), joining);
  } catch (...) {
    destroy_process_group();
    throw;
  }
}

}  // namespace detail

// Called by all ranks of a job of at least two, in which there is neither a default group nor a worker yet. Rank 0 gets
// its Master; on the others it returns nothing, once the master has ended. `options` are those of the process group
// (its backend carries the collectives), `agent` the RPC backend's name with options. Throws on a worker whose master
// died.
inline std::optional<Master> init_master_worker(const GroupOptions& options = {}, const std::string& agent = "") {
  detail::register_commands();
  ProcessGroup group = init_process_group(options);
  const rpc::Worker self = detail::join_master(group, agent);
  if (group.rank() == 0) return Master(self, group);
  try {
    self.rpc_sync({0, Timeout::zero()}, "backplane.hold");  // a master that dies fails it, by name
    self.shutdown();
  } catch (...) {
    detail::CommandState::own().end();
    self.shutdown(false);
    destroy_process_group();
    throw;
  }
  destroy_process_group();
  return std::nullopt;
}

}  // namespace backplane
