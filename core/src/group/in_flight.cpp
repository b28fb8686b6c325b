// SPDX-License-Identifier: Apache-2.0
#include "group/in_flight.hpp"

#include <algorithm>
#include <iterator>

#include "backplane/base/grace.hpp"

namespace backplane::core {

// Errors of requests are ignored here: each request keeps its error for the program.

std::vector<std::shared_ptr<Request>> RequestsInFlight::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Request>> requests;
  for (const auto& entry : requests_) requests.push_back(entry.second);
  return requests;
}

void RequestsInFlight::add(const std::shared_ptr<Request>& request) {
  constexpr size_t kSweepAt = 64;
  std::vector<std::shared_ptr<Request>> dropped;
  {
    const std::lock_guard lock(mutex_);
    requests_.emplace(request.get(), request);
    if (requests_.size() % kSweepAt == 0) {
      for (const auto& entry : requests_) {
        if (entry.second.use_count() == 1) dropped.push_back(entry.second);
      }
    }
  }
  for (const auto& each : dropped) {
    try {
      each->test();
    } catch (const Error&) {
    }
  }
}

void RequestsInFlight::remove(Request* request) {
  std::shared_ptr<Request> last;  // released after the lock
  const std::lock_guard lock(mutex_);
  const auto entry = requests_.find(request);
  if (entry == requests_.end()) return;
  last = std::move(entry->second);
  requests_.erase(entry);
}

Deadline RequestsInFlight::end_overdue() {
  constexpr int64_t kRetryNs = INT64_C(50) * 1000000;  // while another thread drives the request
  Deadline next = Deadline::never();
  for (const auto& request : all()) {
    try {
      const bool is_due = request->watchdog_deadline().passed();
      if (is_due && request->test()) continue;
      next = std::min(next, is_due ? Deadline::after(kRetryNs) : request->watchdog_deadline());
    } catch (const Error&) {
    }
  }
  return next;
}

bool RequestsInFlight::cancel_all() {
  const std::vector<std::shared_ptr<Request>> pending = all();
  // A collective that has received all data ends by itself. Cancelling it would drop messages that peers wait for.
  std::vector<std::shared_ptr<Request>> collectives;
  std::copy_if(pending.begin(), pending.end(), std::back_inserter(collectives),
               [](const auto& request) { return request->cancel_breaks_group(); });
  core::await_all(collectives, Deadline::after(base::grace::kCancel));
  for (const auto& request : pending) request->cancel();
  return core::await_all(pending, Deadline::after(base::grace::kCancel));
}

void RequestsInFlight::await_all() {
  for (;;) {
    std::shared_ptr<Request> request;
    {
      const std::lock_guard lock(mutex_);
      if (requests_.empty()) return;
      request = requests_.begin()->second;
    }
    core::await_all({request}, Deadline::never());
  }
}

bool await_all(const std::vector<std::shared_ptr<Request>>& requests, Deadline deadline) {
  for (const auto& request : requests) {
    try {
      if (!request->wait(deadline)) return false;
    } catch (const Error&) {
    }
  }
  return true;
}

}  // namespace backplane::core
