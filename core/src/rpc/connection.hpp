// SPDX-License-Identifier: Apache-2.0
//
// Sends messages over the transport, which exists as long as a thread uses it. Messages of the worker to itself are
// copied and delivered at once. A mutex guards the transport and the number of its users, and is not held during a
// send. Calls the transport, and its sink for messages to itself.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "rpc/context.hpp"
#include "rpc/payload.hpp"
#include "rpc/transport.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

class Connection {
 public:
  // Ids of messages whose loss is not to be reported.
  static constexpr uint64_t kUnreported = ~uint64_t{0};

  // `sink`: gets messages of the worker to itself.
  Connection(Context* context, Transport::Sink* sink) : context_(*context), sink_(*sink) {}

  void open(std::unique_ptr<Transport> transport);
  // Does not block. id 0: delivered after what was sent before, as a goodbye must be; others may overtake. Throws
  // core::Error; BP_CANCELLED before open and after close.
  void send(int32_t to, const Header& header, Content content, uint64_t id, int64_t timeout_ns);
  // Refuses further sends.
  void close();
  // Ends what is in flight; nothing is delivered afterwards.
  void abort(const Error& why);
  // Call after close and abort. Waits for the sends that still run, then destroys the transport.
  void destroy();

 private:
  class Use;

  void loop_back(const bp_rpc_message& message);

  Context& context_;
  Transport::Sink& sink_;
  std::mutex mutex_;  // guards the fields below
  std::condition_variable unused_;
  std::unique_ptr<Transport> transport_;
  size_t users_ = 0;
  bool closed_ = false;
};

}  // namespace backplane::core::rpc
