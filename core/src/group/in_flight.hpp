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

  // Keeps a request until `remove`. Occasionally tests the requests that the program dropped, to limit their number.
  void add(const std::shared_ptr<Request>& request);
  void remove(Request* request);
  // Tests requests whose deadline has passed. Returns the time of the next test.
  Deadline end_overdue();
  // Waits a grace period for collectives on the serial executor, then cancels all requests. True if all have ended
  // within another grace period.
  bool cancel_all();
  // Waits until all have ended.
  void await_all();

 private:
  std::vector<std::shared_ptr<Request>> all() const;

  mutable std::mutex mutex_;  // never held while a plugin is called
  std::unordered_map<Request*, std::shared_ptr<Request>> requests_;
};

// Waits for all requests. True if all have ended by the deadline.
bool await_all(const std::vector<std::shared_ptr<Request>>& requests, Deadline deadline);

}  // namespace backplane::core
