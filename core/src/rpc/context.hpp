// SPDX-License-Identifier: Apache-2.0
//
// State that the parts of a worker share. A part calls only those to its right:
//
//     Worker (routes what arrives), Lifecycle, Report  ->  Server  ->  References  ->  Caller  ->  Connection
//
// No part holds a lock while it sends, calls another part or runs code of the program.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "backplane/base/executor.hpp"
#include "rpc/call_recorder.hpp"
#include "rpc/metrics.hpp"
#include "rpc/peers.hpp"

namespace backplane::core::rpc {

class Value;
class Worker;

struct Context {
  Context(int32_t rank, std::vector<std::string> names, std::vector<uint64_t> max_message_bytes, size_t max_threads,
          int64_t rpc_timeout);

  // Runs `task` on a thread of the executor; on this one if that has stopped or cannot start a thread.
  void run(std::function<void()> task);
  // Destroys a value on such a thread, because its destructor is code of the program.
  void discard(std::shared_ptr<Value> value);
  // A pointer to a part that keeps its worker alive, for closures.
  template <typename Part>
  std::shared_ptr<Part> keep_alive(Part* part) const {
    return {std::shared_ptr<Worker>(worker), part};
  }

  std::weak_ptr<Worker> worker;  // constant once the worker exists
  Peers peers;
  Metrics metrics;
  CallRecorder recorder;
  base::Executor executor;       // runs functions, callbacks, encoding and destruction of values
  const int64_t rpc_timeout_ns;  // of calls without a timeout of their own
};

}  // namespace backplane::core::rpc
