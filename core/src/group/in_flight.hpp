// SPDX-License-Identifier: Apache-2.0
//
// The requests of a group that have not ended.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "deadline.hpp"
#include "group/request.hpp"

namespace backplane::core {

class RequestsInFlight {
 public:
  RequestsInFlight() = default;
  RequestsInFlight(const RequestsInFlight&) = delete;
  RequestsInFlight& operator=(const RequestsInFlight&) = delete;

  // Keeps a request until `remove`. Now and then also tests those that the caller dropped, so that they do not pile up.
  void add(const std::shared_ptr<Request>& request);
  void remove(Request* request);
  // Tests requests whose deadline has passed. Returns when to do so again.
  Deadline end_overdue();
  // Gives collectives of the core a grace period to end, then cancels all. True: all have ended within another one.
  bool cancel_all();
  // Waits until all have ended.
  void await_all();

 private:
  std::vector<std::shared_ptr<Request>> all() const;

  mutable std::mutex mutex_;  // never held while a plugin is called
  std::unordered_map<Request*, std::shared_ptr<Request>> requests_;
};

// Waits for all of them. True: they ended by the deadline.
bool await_all(const std::vector<std::shared_ptr<Request>>& requests, Deadline deadline);

}  // namespace backplane::core
