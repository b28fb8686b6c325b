// SPDX-License-Identifier: Apache-2.0
//
// Membership of a worker in its group: exchanges with all workers, the news of losses, and shutdown. One thread shuts
// down; a mutex guards who does and the group. Calls every other part, in the order that close() states.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "group/group.hpp"
#include "group/liveness.hpp"
#include "rpc/report.hpp"
#include "rpc/server.hpp"

namespace backplane::core::rpc {

class Lifecycle final : private Liveness::Listener {
 public:
  // `group`: of all workers; destroyed by close.
  Lifecycle(Context* context, Connection* connection, Caller* caller, References* references, Server* server,
            Report* report, std::shared_ptr<Group> group);

  // Registers for the news of losses.
  void start();
  // The bytes of all workers, by rank.
  std::vector<std::string> all_gather(std::string_view object, int64_t timeout_ns);
  // See bp_rpc_shutdown. Returns Report::leaks.
  std::vector<std::string> shutdown(bool graceful, int64_t timeout_ns);
  bool has_left();
  // Shuts down without grace or notice, unless it has left. Does not throw. No other thread may be shutting down.
  void leave(const std::string& why) noexcept;
  // A worker has died or left. Runs no code of the program, because callers may hold locks.
  void on_peer_gone(int32_t peer, const Error& why);

 private:
  class Gathering;
  struct Goodbyes;

  void on_loss(const Loss& loss) override;
  bool begin_shutdown();
  bool is_quiet(uint64_t* begun) const;
  void wait_until_quiet(Deadline deadline, uint64_t* begun);
  void settle(Deadline deadline);
  void shrink_group(Deadline deadline);
  void say_goodbye();
  bool close(const Error& why, Deadline deadline);

  Context& context_;
  Connection& connection_;
  Caller& caller_;
  References& references_;
  Server& server_;
  Report& report_;
  const std::vector<int32_t> global_ranks_;  // of the workers, in the job

  std::mutex mutex_;  // guards what follows
  std::condition_variable left_;
  std::shared_ptr<Liveness> liveness_;
  std::shared_ptr<Group> group_;  // NULL once the worker has left
  size_t gathering_ = 0;          // threads in all_gather
  std::optional<std::thread::id> leaving_;
};

}  // namespace backplane::core::rpc
