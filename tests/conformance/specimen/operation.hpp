// SPDX-License-Identifier: Apache-2.0
//
// One send or receive from submit to its terminal state, and the matching of receives and messages. Guarded by the
// group's lock.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backplane/sdk/sdk.hpp"
#include "wire.hpp"

namespace backplane::specimen {

// A task that threads can wait for.
struct Task {
  virtual ~Task() = default;
  bool done = false;
  std::optional<sdk::Failure> failure;  // valid once done
  void (*ended)(void* to) = nullptr;    // "backplane.notify/1": to be called once it is done
  void* to = nullptr;
  std::vector<std::shared_ptr<Task>> after;  // what its stream held at submit: they are done before it begins
};
using TaskPtr = std::shared_ptr<Task>;
bool all_done(const std::vector<TaskPtr>& tasks);

struct Message;

struct Operation final : Task {
  bool sends = false;
  int32_t peer = BP_ANY_SOURCE;
  uint32_t channel = kMessages;
  uint64_t tag = 0;
  uint64_t id = 0;            // ascending in the order of submission
  std::byte* data = nullptr;  // the user's buffer; a send only reads it
  uint64_t size = 0;          // bytes of the message, or of the receive buffer
  bp_result* result = nullptr;

  int32_t source = -1;         // receive: whose request it has met, and then waits for; else -1
  uint64_t got_tag = 0;        // receive: the tag of the message that it has met
  Message* message = nullptr;  // receive: of this message, which a probe took

  // "recv from rank 2 with tag 7"
  std::string text() const;
};
using OperationPtr = std::shared_ptr<Operation>;

// A message that no receive has taken yet.
struct Arrival {
  int32_t source = -1;
  uint32_t channel = kMessages;
  uint64_t tag = 0;
  uint64_t size = 0;
  bool eager = true;
  std::vector<std::byte> bytes;  // eager
  uint64_t remote_id = 0;        // request of another rank: its send
  OperationPtr local_send;       // request of this rank to itself
  uint64_t order = 0;            // ascending as messages arrive
};

// Both sides filed by channel and tag, oldest first; receives of BP_ANY_TAG have a file of their own.
class Matcher {
 public:
  // Removes and returns the oldest receive for such a message; null if there is none.
  OperationPtr take_receive(const Arrival& arrival);
  // Removes and returns the oldest message for this receive.
  std::optional<Arrival> take_arrival(const Operation& receive);
  // By id, so that a receive that comes back finds its old place.
  void add_receive(const OperationPtr& receive);
  void add_arrival(Arrival arrival);

  bool remove_receive(const Operation& receive);
  bool remove_local(const Operation& send);
  bool remove_request(const Arrival& request);
  // Drops the requests of a lost rank; its eager messages stay. Returns the receives that name it.
  std::vector<OperationPtr> drop_source(int32_t source);
  // Removes and returns the receives from BP_ANY_SOURCE.
  std::vector<OperationPtr> take_any_source();
  // Empties everything; returns the receives and the sends of this rank to itself.
  std::vector<OperationPtr> clear();

  // Tags with this bit are not matched by BP_ANY_TAG.
  void set_internal(uint64_t bit) { internal_ = bit; }

 private:
  using Place = std::pair<uint32_t, uint64_t>;
  std::optional<Arrival> take_any_tag(const Operation& receive);

  uint64_t internal_ = BP_TAG_INTERNAL;
  uint64_t next_order_ = 1;
  std::map<Place, std::list<OperationPtr>> receives_;
  std::map<Place, std::list<Arrival>> arrivals_;
};

}  // namespace backplane::specimen
