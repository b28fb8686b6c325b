// SPDX-License-Identifier: Apache-2.0
//
// A worker: owns its parts (context.hpp names them) and routes messages that arrive to them. It has no lock of its own.
// Messages arrive on threads of the transport, and are handled there without blocking. Every pointer to a part that
// another thread may use keeps the worker alive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rpc/joining.hpp"
#include "rpc/lifecycle.hpp"

namespace backplane::core::rpc {

class Worker : public std::enable_shared_from_this<Worker>, private Transport::Sink {
 public:
  // Blocks until all workers have joined. A failure of one fails all. Throws core::Error.
  static std::shared_ptr<Worker> join(const WorkerConfig& config);
  ~Worker() override;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Peers& peers() const { return context_.peers; }
  const std::string& backend() const { return backend_; }
  Caller& caller() { return caller_; }
  References& references() { return references_; }
  Report& report() { return report_; }
  Lifecycle& lifecycle() { return lifecycle_; }

  // Calls a function. BP_INHERIT_TIMEOUT: the worker's. Returns the number for Caller::cancel.
  uint64_t call(int32_t to, const std::string& function, Content arguments, int64_t timeout_ns, Done done);
  // Runs `task` on a thread of the worker, or on this one after shutdown.
  void run(std::function<void()> task) { context_.run(std::move(task)); }

  // The worker whose function runs on this thread, or NULL, and whether the function's caller no longer waits.
  static std::shared_ptr<Worker> current();
  static bool cancelled();

 private:
  Worker(const WorkerConfig& config, const Joining& joining);

  void received(int32_t from, const bp_rpc_message& message) override { receive(from, message, nullptr); }
  void refused(int32_t from, const bp_rpc_message& message, const Error& error) override {
    receive(from, message, &error);
  }
  void failed(int32_t to, uint64_t id, const Error& error) override;
  void lost(int32_t peer, const Error& error) override;
  // `problem`: why the buffers could not be received; NULL: they were.
  void receive(int32_t from, const bp_rpc_message& message, const Error* problem);
  void route(int32_t from, Header header, std::shared_ptr<Payload> payload, const Error* problem);

  const std::string backend_;
  Context context_;
  Connection connection_;
  Caller caller_;
  References references_;
  Server server_;
  Report report_;
  Lifecycle lifecycle_;
};

}  // namespace backplane::core::rpc
