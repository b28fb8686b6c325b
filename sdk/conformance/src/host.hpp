// SPDX-License-Identifier: Apache-2.0
//
// The host table of one agent. Its store is a prefix of the world's; its log goes to the supervisor.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backplane/abi/abi.h"
#include "world.hpp"

namespace backplane::conformance {

using LogSink = std::function<void(uint32_t level, const char* text)>;

// Whether the environment names a secret, so that the job under test is secure.
bool named_secret();

// Not movable. Must outlive the agent.
class Host {
 public:
  // `space` is the agent's part of the store: agents of one group share it, others never do. `secure`: the job has a
  // secret.
  Host(World& world, std::string space, LogSink log, bool secure = named_secret());
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const bp_host* table() const { return &table_; }

  void request_abort() { abort_.store(true); }
  // The failures that the plugin has reported so far, oldest first.
  std::vector<bp_error> reports() const {
    const std::lock_guard lock(reports_mutex_);
    return reports_;
  }

 private:
  struct Functions;

  World& world_;
  const std::string space_;
  const bool secure_;
  const LogSink log_;
  std::atomic<bool> abort_ = false;
  mutable std::mutex reports_mutex_;
  std::vector<bp_error> reports_;
  bp_host table_;
};

}  // namespace backplane::conformance
