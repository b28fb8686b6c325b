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
#include "store/wire.hpp"

namespace backplane::core {

struct OutgoingReply {
  ClientId client = 0;
  uint64_t request = 0;
  int32_t status = BP_OK;
  Bytes payload;  // the value or the text of an error
};

class RequestHandler {
 public:
  // `deliver` is called once for each request except cancels: at once, or when the keys that it waits for exist.
  explicit RequestHandler(std::function<void(OutgoingReply)> deliver);

  void handle(ClientId client, StoreRequest request);
  // Drops the waiting requests of a client that disconnected.
  void forget(ClientId client);

  bool contains(std::string_view key) const { return table_.contains(key); }
  size_t waiting() const { return waiters_.size(); }

 private:
  using WaiterId = std::pair<ClientId, uint64_t>;  // client and id of the request
  // In by_key_ under one missing key at a time: keys[at].
  struct Waiter {
    bool wants_value = false;
    std::vector<std::string> keys;
    size_t at = 0;
  };

  Bytes perform(const StoreRequest& request);
  void start_waiting(ClientId client, StoreRequest request);
  void cancel(ClientId client, uint64_t request);
  // Sets the key and resumes the requests that wait for it.
  void put(std::string_view key, Bytes value);
  // Advances to the next missing key; false if there is none.
  bool advance(Waiter& waiter) const;
  void finish(std::map<WaiterId, Waiter>::iterator waiter);
  void unlink(const WaiterId& id, const std::string& key);

  const std::function<void(OutgoingReply)> deliver_;
  Table table_;
  std::map<WaiterId, Waiter> waiters_;
  std::map<std::string, std::set<WaiterId>, std::less<>> by_key_;
};

}  // namespace backplane::core
