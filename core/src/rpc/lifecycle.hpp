// SPDX-License-Identifier: Apache-2.0
//
// Membership of a worker in its group: exchanges with all workers, reports of losses, and shutdown. One thread shuts
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

#include "group/failure_detector.hpp"
#include "group/group.hpp"
#include "rpc/report.hpp"
#include "rpc/server.hpp"

namespace backplane::core::rpc {

class Lifecycle final : private FailureDetector::Listener {
 public:
  // `group`: of all workers; destroyed by close.
  Lifecycle(Context* context, Connection* connection, Caller* caller, References* references, Server* server,
            Report* report, std::shared_ptr<Group> group);

  // Registers for reports of losses.
  void start();
  // The bytes of all workers, by rank.
  std::vector<std::string> all_gather(std::string_view object, int64_t timeout_ns);
  // See bp_rpc_shutdown. Returns Report::leaks.
  std::vector<std::string> shutdown(bool graceful, int64_t timeout_ns);
  bool has_left();
  // Shuts down without grace or notice, unless it has left. Does not throw. No other thread may be shutting down.
  void leave(const std::string& why) noexcept;
  // At exit: waits up to a second for the functions that run here, so that they reply, says goodbye, so that the
  // replies arrive, and ends the transport unless calls are under way: their failure could end the program in another
  // way. Ends no function, and frees no value.
  void leave_at_exit(const Deadline& deadline) noexcept;
  // A worker has died or left. Runs no code of the program, because callers may hold locks.
  void on_peer_gone(int32_t peer, const Error& why);

 private:
  class Gathering;
  class Progress;
  struct PendingGoodbyes;

  void on_loss(const Loss& loss) override;
  bool begin_shutdown();
  bool is_quiet(uint64_t* begun) const;
  void wait_until_quiet(Deadline deadline, uint64_t* begun);
  void settle(Deadline deadline);
  void shrink_group(Deadline deadline);
  void send_goodbyes();
  bool close(const Error& why, Deadline deadline);

  Context& context_;
  Connection& connection_;
  Caller& caller_;
  References& references_;
  Server& server_;
  Report& report_;
  const std::vector<int32_t> global_ranks_;  // of the workers, in the job

  std::mutex mutex_;  // guards the fields below
  std::condition_variable left_;
  std::shared_ptr<FailureDetector> detector_;
  std::shared_ptr<Group> group_;  // NULL once the worker has left
  size_t gathering_ = 0;          // threads in all_gather
  std::optional<std::thread::id> leaving_;
  bool exiting_ = false;
};

}  // namespace backplane::core::rpc
