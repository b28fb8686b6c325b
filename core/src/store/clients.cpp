// SPDX-License-Identifier: Apache-2.0
#include "store/clients.hpp"

#include <utility>

#include "error.hpp"
#include "text.hpp"
#include "waiting.hpp"

namespace backplane::core {

void Clients::enter(ClientId client, std::string name) {
  const std::lock_guard lock(mutex_);
  names_[client] = std::move(name);
}

void Clients::leave(ClientId client) {
  const std::lock_guard lock(mutex_);
  names_.erase(client);
  if (names_.empty()) none_.notify_all();
}

void Clients::await_none(const Deadline& deadline, const std::string& where) {
  constexpr size_t kNamed = 8;
  const Allowance allowance(deadline);
  std::unique_lock lock(mutex_);
  while (!names_.empty()) {
    if (wait_on(none_, lock, deadline) || names_.empty()) continue;
    std::string named;
    size_t count = 0;
    for (const auto& [client, name] : names_) {
      if (++count > kNamed) break;
      named += (count == 1 ? "" : ", ") + name;
    }
    if (names_.size() > kNamed) named += fmt::format(" and {} more", names_.size() - kNamed);
    fail(BP_TIMEOUT, "{} of the store at {} {} still connected after {}: {}",
         names_.size() == 1 ? "1 client" : fmt::format("{} clients", names_.size()), where,
         names_.size() == 1 ? "is" : "are", allowance.text(), named);
  }
}

}  // namespace backplane::core
