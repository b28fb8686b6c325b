// SPDX-License-Identifier: Apache-2.0
//
// The workers' side of compat/master_worker.hpp: commands, their order, and their buffers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "backplane/process_group.hpp"
#include "backplane/rpc.hpp"

namespace backplane {
namespace detail {

// On a worker: its buffers, and the order of its commands. On the master: whether it has ended.
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
  // Blocks until command `number` may begin: all earlier ones have ended or were skipped. Throws Status::kCancelled if
  // it was skipped or cancelled itself.
  void begin(uint64_t number) {
    const rpc::detail::Waiting waiting;
    std::unique_lock lock(mutex_);
    for (;;) {
      if (ended_ || number < next_ || skipped_.count(number) > 0 || rpc::cancelled()) {
        pass_over(number);
        fail(Status::kCancelled, "the master no longer waits for this command");
      }
      if (!running_ && number == next_) break;
      changed_.wait_for(lock, kCheckInterval);  // a cancel does not notify
    }
    running_ = true;
  }
  void finish() {
    const std::lock_guard lock(mutex_);
    running_ = false;
    ++next_;
    advance();
  }
  // Command `number` must not run. Has no effect on a command that runs or has run.
  void skip(uint64_t number) {
    const std::lock_guard lock(mutex_);
    pass_over(number);
  }
  // On a worker: cancels commands that have not begun. On the master: ends hold.
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

  using Bytes = std::vector<std::byte>;

  std::shared_ptr<Bytes> shared_buffer(uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(id);
    if (found == buffers_.end()) fail(Status::kInvalid, "there is no such buffer on this worker; it was dropped");
    return found->second;
  }
  Bytes& buffer(uint64_t id) { return *shared_buffer(id); }
  void make(uint64_t id, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    buffers_[id] = std::make_shared<Bytes>(bytes);
  }
  void drop(uint64_t id) {
    const std::lock_guard lock(mutex_);
    buffers_.erase(id);
  }
  ProcessGroup& workers() { return *workers_; }

 private:
  static constexpr std::chrono::milliseconds kCheckInterval{100};

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
  std::map<uint64_t, std::shared_ptr<Bytes>> buffers_;
  std::set<uint64_t> skipped_;  // of those from next_ on
  uint64_t next_ = 0;
  bool running_ = false;  // command next_ is
  bool ended_ = false;
};

// Holds a command's place in the order during its lifetime.
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

namespace compat {

// The name of a buffer of `count` elements on each worker. Commands take it as an argument.
template <Element T>
struct Distributed {
  uint64_t id = 0;
  uint64_t count = 0;  // elements on each worker

  // On a worker: its elements. Valid until the buffer is dropped.
  std::span<T> local() const {
    std::vector<std::byte>& bytes = detail::CommandState::own().buffer(id);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  MSGPACK_DEFINE(id, count)
};

// Registers a function that a master may run on workers, under a unique name. Call it on all ranks before
// init_master_worker. Arguments and results are those of rpc::register_function.
template <typename Function>
void register_command(const std::string& name, Function function) {
  using Signature = rpc::detail::Signature<Function>;
  rpc::register_function(name, detail::in_turn(std::move(function), std::type_identity<typename Signature::Arguments>(),
                                               std::type_identity<typename Signature::Result>()));
}

}  // namespace compat

namespace detail {

inline Buffer whole(uint64_t id, uint32_t dtype) {
  std::vector<std::byte>& bytes = CommandState::own().buffer(id);
  return Buffer(bytes.data(), bytes.size() / bp_dtype_size(dtype), static_cast<DType>(dtype));
}

inline void register_commands() {
  static std::once_flag once;
  std::call_once(once, [] {
    compat::register_command("backplane.make", [](uint64_t id, uint64_t bytes, const std::vector<uint8_t>& value) {
      CommandState::own().make(id, bytes);
      std::vector<std::byte>& made = CommandState::own().buffer(id);
      for (uint64_t at = 0; at < bytes; at += value.size()) std::memcpy(made.data() + at, value.data(), value.size());
    });
    compat::register_command("backplane.drop", [](uint64_t id) { CommandState::own().drop(id); });
    compat::register_command("backplane.write", [](uint64_t id, const rpc::Array<uint8_t>& values) {
      std::vector<std::byte>& bytes = CommandState::own().buffer(id);
      if (bytes.size() != values.size()) fail(Status::kInvalid, "write: the buffer has another size");
      if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    });
    compat::register_command("backplane.read", [](uint64_t id) {
      // Not a copy: the master waits for it, so that no other command writes to the buffer meanwhile.
      const auto bytes = CommandState::own().shared_buffer(id);
      return rpc::Array<uint8_t>(reinterpret_cast<uint8_t*>(bytes->data()), bytes->size(), bytes);
    });
    compat::register_command("backplane.all_reduce", [](uint64_t id, uint32_t dtype, uint32_t op) {
      CommandState::own().workers().all_reduce(whole(id, dtype), static_cast<ReduceOp>(op));
    });
    compat::register_command("backplane.broadcast", [](uint64_t id, uint32_t dtype, int root) {
      CommandState::own().workers().broadcast(whole(id, dtype), root);
    });
    compat::register_command("backplane.reduce", [](uint64_t id, uint32_t dtype, int root, uint32_t op) {
      const Buffer buffer = whole(id, dtype);
      ProcessGroup& workers = CommandState::own().workers();
      workers.reduce(buffer, workers.rank() == root ? buffer : Buffer(), root, static_cast<ReduceOp>(op));
    });
    compat::register_command("backplane.all_gather", [](uint64_t each, uint64_t all, uint32_t dtype) {
      CommandState::own().workers().all_gather(whole(each, dtype), whole(all, dtype));
    });
    compat::register_command("backplane.gather", [](uint64_t each, uint64_t all, uint32_t dtype, int root) {
      ProcessGroup& workers = CommandState::own().workers();
      const Buffer there = whole(all, dtype);  // on all ranks: a dropped buffer fails before any rank begins
      workers.gather(whole(each, dtype), workers.rank() == root ? there : Buffer(), root);
    });
    compat::register_command("backplane.scatter", [](uint64_t all, uint64_t each, uint32_t dtype, int root) {
      ProcessGroup& workers = CommandState::own().workers();
      const Buffer there = whole(all, dtype);
      workers.scatter(workers.rank() == root ? there : Buffer(), whole(each, dtype), root);
    });
    compat::register_command("backplane.barrier", [] { CommandState::own().workers().barrier(); });
    rpc::register_function("backplane.skip", [](uint64_t number) { CommandState::own().skip(number); });
    rpc::register_function("backplane.hold", [] { CommandState::own().hold(); });
  });
}

}  // namespace detail

}  // namespace backplane
