// SPDX-License-Identifier: Apache-2.0
//
// Master-worker mode of the first torch.distributed (init_master_worker), over RPC: rank 0, the master, creates buffers
// on the other ranks, the workers, runs functions and collectives on them in one order, and gets results and errors.
//
//     namespace compat = backplane::compat;
//     compat::register_command("scale", [](compat::Distributed<float> x, float by) {
//       for (float& value : x.local()) value *= by;
//     });
//     if (auto master = compat::init_master_worker()) {  // returns on the workers when the master has ended
//       auto x = master->make<float>(1000, 1.0F);
//       master->run("scale", x, 2.0F);
//       master->all_reduce(x);
//       std::vector<float> sum = master->read(x, 1);
//     }
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backplane/compat/detail/master_worker_commands.hpp"
#include "backplane/distributed.hpp"
#include "backplane/rpc.hpp"

namespace backplane::detail {

// The commands of the master, in one order per worker. Not thread-safe.
class CommandQueues {
 public:
  static constexpr size_t kMaxOpen = 64;  // unfinished commands of one worker

  explicit CommandQueues(rpc::Worker self) : self_(std::move(self)), queues_(static_cast<size_t>(self_.world_size())) {}

  const rpc::Worker& self() const { return self_; }
  int workers() const { return self_.world_size() - 1; }
  // Throws Status::kInvalid unless this is the rank of a worker.
  void check(int worker) const {
    if (worker >= 1 && worker <= workers()) return;
    fail(Status::kInvalid,
         "there is no worker " + std::to_string(worker) + "; they are 1 to " + std::to_string(workers()));
  }
  // Waits for the oldest command of the worker if kMaxOpen are unfinished.
  template <typename R, typename... Arguments>
  rpc::Future<R> add(int worker, const std::string& command, const Arguments&... arguments) {
    check(worker);
    Queue& queue = queues_[static_cast<size_t>(worker)];
    while (queue.open.size() >= kMaxOpen) {
      queue.open.front().wait();
      queue.open.pop_front();
    }
    auto future = self_.rpc_async<R>({worker, kNoTimeout}, command, queue.next,
                                     arguments...);  // if this throws, the number stays unused
    const uint64_t number = queue.next++;
    queue.open.push_back(future.then([self = self_, worker, number](const rpc::Future<R>& ended) {
      if (has_failed(ended)) skip(self, worker, number, kTries);
    }));
    return future;
  }
  // Waits until all commands have ended.
  void wait() const {
    for (const Queue& queue : queues_) {
      for (const auto& end : queue.open) end.wait();
    }
  }

 private:
  struct Queue {
    uint64_t next = 0;
    std::deque<rpc::Future<void>> open;  // that may not have ended
  };
  static constexpr int kTries = 3;

  template <typename R>
  static bool has_failed(const rpc::Future<R>& ended) {
    try {
      ended.wait();
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }
  // A command that failed may not have reached its worker: later commands must not wait for it.
  static void skip(const rpc::Worker& self, int worker, uint64_t number, int tries) {
    try {
      self.rpc_async(worker, "backplane.skip", number)
          .then([self, worker, number, tries](const rpc::Future<void>& ended) {
            if (tries > 1 && has_failed(ended)) skip(self, worker, number, tries - 1);
          });
    } catch (const Error&) {
      // This process is shutting down, or the worker is lost.
    }
  }

  rpc::Worker self_;
  std::vector<Queue> queues_;  // by rank
};

template <Element T>
uint32_t type_of() {
  return static_cast<uint32_t>(backplane::dtype_of<T>);
}
template <typename T>
std::vector<uint8_t> bytes_of(const T& value) {
  std::vector<uint8_t> bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
template <typename T>
rpc::Array<uint8_t> as_bytes(std::vector<T> values) {
  auto kept = std::make_shared<std::vector<T>>(std::move(values));
  return rpc::Array<uint8_t>(reinterpret_cast<uint8_t*>(kept->data()), kept->size() * sizeof(T), kept);
}

}  // namespace backplane::detail

namespace backplane::compat {

// The master's interface to the workers, which are ranks 1 to workers(). Each worker begins commands in the order of
// the calls. Calls that return futures return at once, or, if kMaxOpen commands of a worker are running, when the
// oldest of them has ended. A failure on a worker is an Error with its rank (Error::peer_rank); the loss of a worker
// fails all calls that wait for it. Not thread-safe.
class Master {
 public:
  static constexpr size_t kMaxOpen = detail::CommandQueues::kMaxOpen;

  Master(rpc::Worker self, ProcessGroup group) : queues_(std::move(self)), group_(std::move(group)) {}
  Master(Master&&) = default;
  Master& operator=(Master&&) = delete;
  // Shuts down, and discards failures.
  ~Master() {
    if (queues_.self().get() == nullptr) return;
    try {
      shutdown();
    } catch (...) {
      // A destructor cannot report it.
    }
  }

  int workers() const { return queues_.workers(); }

  // Runs a command on one worker, or on all. A command that is cancelled before it begins never runs.
  template <typename R = void, typename... Arguments>
  rpc::Future<R> run_on(int worker, const std::string& command, const Arguments&... arguments) {
    return queues_.add<R>(worker, command, arguments...);
  }
  template <typename R = void, typename... Arguments>
  std::vector<rpc::Future<R>> run(const std::string& command, const Arguments&... arguments) {
    std::vector<rpc::Future<R>> ends;
    for (int worker = 1; worker <= workers(); ++worker) ends.push_back(run_on<R>(worker, command, arguments...));
    return ends;
  }
  // Runs a command on all workers and blocks until all have ended. Returns the results in order of the workers.
  template <typename R, typename... Arguments>
  std::vector<R> ask(const std::string& command, const Arguments&... arguments) {
    std::vector<R> results;
    for (const auto& end : run<R>(command, arguments...)) results.push_back(end.wait());
    return results;
  }

  // Creates a buffer of `count` elements on each worker. Returns at once. shutdown reports a failure.
  template <Element T>
  Distributed<T> make(uint64_t count, T value = T()) {
    const Distributed<T> made{++last_id_, count};
    watch(run("backplane.make", made.id, count * sizeof(T), detail::bytes_of(value)));
    return made;
  }
  // Frees a buffer on all workers. Returns at once. shutdown reports a failure.
  template <Element T>
  void drop(const Distributed<T>& buffer) {
    watch(run("backplane.drop", buffer.id));
  }
  // Copies `values`, which must be as many as the buffer has elements, to one worker. Blocks until they are written.
  template <Element T>
  void write(const Distributed<T>& buffer, int worker, std::vector<T> values) {
    if (values.size() != buffer.count) detail::fail(Status::kInvalid, "write: the buffer has another size");
    run_on(worker, "backplane.write", buffer.id, detail::as_bytes(std::move(values))).wait();
  }
  // Returns a copy of one worker's elements. Blocks.
  template <Element T>
  std::vector<T> read(const Distributed<T>& buffer, int worker) {
    const auto bytes = run_on<rpc::Array<uint8_t>>(worker, "backplane.read", buffer.id).wait();
    std::vector<T> values(bytes.size() / sizeof(T));
    if (bytes.size() > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  // Collectives between the workers, in place. `root` is a worker's rank.
  template <Element T>
  std::vector<rpc::Future<void>> all_reduce(const Distributed<T>& buffer, ReduceOp op = ReduceOp::kSum) {
    return run("backplane.all_reduce", buffer.id, detail::type_of<T>(), static_cast<uint32_t>(op));
  }
  template <Element T>
  std::vector<rpc::Future<void>> broadcast(const Distributed<T>& buffer, int root) {
    return run("backplane.broadcast", buffer.id, detail::type_of<T>(), rank_of(root));
  }
  template <Element T>
  std::vector<rpc::Future<void>> reduce(const Distributed<T>& buffer, int root, ReduceOp op = ReduceOp::kSum) {
    return run("backplane.reduce", buffer.id, detail::type_of<T>(), rank_of(root), static_cast<uint32_t>(op));
  }
  // Collectives between the workers, from the first buffer to the second. `each` has N elements; `all` must have N for
  // each worker, in their order. Only the root's `all` is used by gather and scatter. Status::kInvalid for other
  // counts.
  template <Element T>
  std::vector<rpc::Future<void>> all_gather(const Distributed<T>& each, const Distributed<T>& all) {
    check_blocks("all_gather", each.count, all.count);
    return run("backplane.all_gather", each.id, all.id, detail::type_of<T>());
  }
  template <Element T>
  std::vector<rpc::Future<void>> gather(const Distributed<T>& each, const Distributed<T>& all, int root) {
    check_blocks("gather", each.count, all.count);
    return run("backplane.gather", each.id, all.id, detail::type_of<T>(), rank_of(root));
  }
  template <Element T>
  std::vector<rpc::Future<void>> scatter(const Distributed<T>& all, const Distributed<T>& each, int root) {
    check_blocks("scatter", each.count, all.count);
    return run("backplane.scatter", all.id, each.id, detail::type_of<T>(), rank_of(root));
  }
  // Its futures end when all workers have finished all earlier commands.
  std::vector<rpc::Future<void>> barrier() { return run("backplane.barrier"); }

  // Blocks until all commands have ended and ends the workers. Throws the first failure of a make, a drop or the
  // shutdown itself; the workers are ended in that case as well. A second call has no effect.
  void shutdown() {
    if (std::exchange(ended_, true)) return;
    queues_.wait();
    watch({});
    detail::CommandState::own().end();
    attempt([this] { queues_.self().shutdown(); });
    attempt([] {
      if (is_initialized()) destroy_process_group();
    });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // Its rank in the workers' group.
  int rank_of(int worker) const {
    queues_.check(worker);
    return worker - 1;
  }
  void check_blocks(const std::string& collective, uint64_t each, uint64_t all) const {
    const auto blocks = static_cast<uint64_t>(workers());
    if (all % blocks == 0 && all / blocks == each) return;
    detail::fail(Status::kInvalid, collective + ": a buffer of " + std::to_string(all) + " elements does not hold " +
                                       std::to_string(each) + " of each of " + std::to_string(blocks) + " workers");
  }
  template <typename Function>
  void attempt(const Function& function) {
    try {
      function();
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
  }
  // Keeps commands whose futures the caller does not get. shutdown throws the first failure.
  void watch(const std::vector<rpc::Future<void>>& ends) {
    watched_.insert(watched_.end(), ends.begin(), ends.end());
    std::erase_if(watched_, [this](const auto& end) {
      if (!end.done()) return false;
      attempt([&end] { end.wait(); });
      return true;
    });
  }

  detail::CommandQueues queues_;
  ProcessGroup group_;
  std::vector<rpc::Future<void>> watched_;
  std::exception_ptr failure_;
  uint64_t last_id_ = 0;
  bool ended_ = false;
};

}  // namespace backplane::compat

namespace backplane::detail {

// Creates the RPC worker of a rank of `group`, the default group, and destroys that group on failure.
inline rpc::Worker join_master(ProcessGroup& group, const std::string& agent) {
  try {
    if (group.world_size() < 2)
      fail(Status::kInvalid, "init_master_worker needs at least two ranks: a master and a worker");
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

}  // namespace backplane::detail

namespace backplane::compat {

// Starts the mode. All ranks of a job of at least two must call it, without a default group and without an RPC worker.
// Rank 0 gets its Master. The other ranks block until the master has ended, and get nothing. `options` are those of the
// process group, whose backend runs the collectives; `agent` is the RPC backend, written as RpcOptions::backend. Throws
// on a worker if the master is lost.
inline std::optional<Master> init_master_worker(const GroupOptions& options = {}, const std::string& agent = "") {
  detail::register_commands();
  ProcessGroup group = backplane::init_process_group(options);
  const rpc::Worker self = detail::join_master(group, agent);
  if (group.rank() == 0) return Master(self, group);
  try {
    self.rpc_sync({0, kNoTimeout}, "backplane.hold");  // fails, naming the master, if the master is lost
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

}  // namespace backplane::compat
