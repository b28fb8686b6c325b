// SPDX-License-Identifier: Apache-2.0
#include "rpc/context.hpp"

#include <system_error>
#include <utility>

#include "log.hpp"
#include "rpc/payload.hpp"

namespace backplane::core::rpc {

Context::Context(int32_t rank, std::vector<std::string> names, std::vector<uint64_t> max_message_bytes,
                 size_t max_threads, int64_t rpc_timeout)
    : peers(rank, std::move(names), std::move(max_message_bytes)),
      metrics(static_cast<size_t>(peers.size())),
      executor(max_threads, base::Executor::AtStop::kRunQueued,
               [](const std::exception& e) {
                 static base::LogLimit limit;
                 log(limit, BP_LOG_WARN, "rpc: cannot start another thread for calls ({}); the existing ones run them",
                     e.what());
               }),
      rpc_timeout_ns(rpc_timeout) {}

void Context::run(std::function<void()> task) {
  bool added = false;
  try {
    added = executor.add(std::move(task));
  } catch (const std::system_error& e) {
    static base::LogLimit limit;
    log(limit, BP_LOG_WARN,
        "rpc: cannot start a thread for calls ({}); a function runs on the thread that received its call", e.what());
  }
  if (!added) task();  // NOLINT(bugprone-use-after-move): not moved from unless it was added
}

void Context::discard(std::shared_ptr<Value> value) {
  if (value) run([value = std::move(value)]() mutable { value.reset(); });
}

}  // namespace backplane::core::rpc
