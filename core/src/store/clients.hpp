// SPDX-License-Identifier: Apache-2.0
//
// The connected clients of a server, with their names for messages. Thread-safe.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "deadline.hpp"
#include "store/request_handler.hpp"

namespace backplane::core {

class Clients {
 public:
  // A second name replaces the first.
  void enter(ClientId client, std::string name);
  // Ignores unknown clients.
  void leave(ClientId client);
  // Waits until no client is connected. BP_TIMEOUT "2 clients of the store at 127.0.0.1:29500 are still connected after
  // 5 s:
  // ...".
  void await_none(const Deadline& deadline, const std::string& where);

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::map<ClientId, std::string> names_;  // guarded by mutex_
};

}  // namespace backplane::core
