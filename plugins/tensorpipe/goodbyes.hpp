// SPDX-License-Identifier: Apache-2.0
//
// The goodbyes of one sender. A goodbye must not overtake the messages sent before it on express connections: this
// counts their arrival and keeps each goodbye until they are complete. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transport.hpp"
#include "wire.hpp"

namespace backplane::tensorpipe {

struct Goodbye {
  Pipe pipe;
  std::unique_ptr<IncomingMessage> received;
};

class DeferredGoodbyes {
 public:
  // Counts a message of the express connection with this number. Returns the goodbyes that waited for it.
  std::vector<Goodbye> count(uint64_t express);
  // The same when no message of that connection can arrive any more.
  std::vector<Goodbye> end(uint64_t express);
  // Takes a goodbye, or leaves it and returns false: all messages before it have arrived, or too many are deferred.
  bool defer(const Pipe& pipe, std::unique_ptr<IncomingMessage>& received);
  // The goodbyes of a pipe that has ended.
  std::vector<Goodbye> take(const Pipe& pipe);

 private:
  bool is_due(const IncomingMessage& goodbye) const;
  std::vector<Goodbye> take_if(const std::function<bool(const Goodbye&)>& wanted);
  std::vector<Goodbye> take_due();

  ExpressPosition arrived_;  // on the latest express connection; UINT64_MAX messages: it has ended
  std::vector<Goodbye> deferred_;
};

}  // namespace backplane::tensorpipe
