// SPDX-License-Identifier: Apache-2.0
//
// Handles the key-value requests of a TCP store's clients. Has no sockets. Not synchronised: the server's thread owns
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "liveness/membership_table.hpp"
#include "store/table.hpp"
#include "store/wait_budget.hpp"
#include "store/wire.hpp"

namespace backplane::core {

struct OutgoingReply {
  ClientId client = 0;
  uint64_t request = 0;
  int32_t status = BP_OK;
  Bytes payload;  // the value or the text of an error
};

// Fails with BP_INVALID if a request has another number of texts.
void expect_texts(const StoreRequest& request, size_t count);

class RequestHandler {
 public:
  // `deliver` is called once for each request except cancels: at once, or when the keys that it waits for exist.
  explicit RequestHandler(std::function<void(OutgoingReply)> deliver, const WaitBudget& budget = WaitBudget())
      : deliver_(std::move(deliver)), budget_(budget) {}

  void handle(ClientId client, StoreRequest request);
  // Drops the waiting requests of a client that disconnected.
  void forget(ClientId client);

  bool contains(std::string_view key) const { return table_.contains(key); }
  Bytes find(std::string_view key) const { return table_.find(key); }  // null if the key does not exist
  size_t waiting() const { return waiters_.size(); }

 private:
  using WaiterId = std::pair<ClientId, uint64_t>;  // client and id of the request
  // In by_key_ under one missing key at a time: keys[at].
  struct Waiter {
    bool wants_value = false;
    std::vector<std::string> keys;
    size_t at = 0;
    size_t bytes = 0;  // of memory
  };
  using Waiters = std::map<WaiterId, Waiter>;

  Bytes perform(StoreRequest& request);
  void start_waiting(ClientId client, StoreRequest request);
  void cancel(ClientId client, uint64_t request);
  // Sets the key and resumes the requests that wait for it.
  void put(std::string_view key, Bytes value);
  // Advances to the next missing key; false if there is none.
  bool advance(Waiter& waiter) const;
  void reply(const WaiterId& id, const Waiter& waiter);
  // Both remove a waiter and return the next one. `unlink` also removes it from by_key_.
  Waiters::iterator unlink(Waiters::iterator waiter);
  Waiters::iterator erase(Waiters::iterator waiter);

  const std::function<void(OutgoingReply)> deliver_;
  Table table_;
  Waiters waiters_;
  WaitBudget budget_;
  std::map<std::string, std::set<WaiterId>, std::less<>> by_key_;
};

}  // namespace backplane::core
