// SPDX-License-Identifier: Apache-2.0
//
// Where receives and arrivals of one rank meet. Both are filed by tag, oldest first, so that a flood of one tag does
// not slow down another; receives of any tag under BP_ANY_TAG. Guarded by the group's mutex.
#pragma once

#include <functional>
#include <list>
#include <unordered_map>
#include <zmq.hpp>

#include "operation.hpp"

namespace backplane::zmq_plugin {

// A message that no receive has taken yet: an eager one with its bytes, or the request of one that waits elsewhere.
struct Arrival {
  int32_t source = -1;
  uint64_t tag = 0;
  uint64_t size = 0;
  uint64_t order = 0;  // set by the matcher, ascending in the order of arrival
  bool eager = true;
  zmq::message_t frame;  // eager: the bytes, from `skip` on
  size_t skip = 0;
  uint64_t remote_id = 0;   // request of another rank: the send's id there
  OperationPtr local_send;  // request of this rank to itself

  const std::byte* bytes() const { return frame.data<std::byte>() + skip; }
};

class Matcher {
 public:
  // Removes and returns the oldest receive for such a message; null if there is none.
  OperationPtr take_receive(int32_t source, uint64_t tag);
  // Removes and returns the oldest message for a receive of this source and tag. Of BP_ANY_TAG it looks at each tag.
  std::optional<Arrival> take_arrival(int32_t source, uint64_t tag);
  // Files by id, so that a receive that comes back finds its old place.
  void add_receive(const OperationPtr& receive);
  void add_arrival(Arrival arrival);

  bool remove_receive(const Operation& receive);
  // Drops the request of that send. False if there is none.
  bool remove_request(int32_t source, uint64_t tag, uint64_t remote_id);
  bool remove_local(const Operation& send);

  // The rank is gone: drops its requests, which nobody can answer any more, but keeps its eager messages; returns the
  // receives that name it.
  std::vector<OperationPtr> drop_source(int32_t source);
  // Empties everything; returns the receives, and the sends of this rank to itself.
  std::vector<OperationPtr> clear();

 private:
  std::unordered_map<uint64_t, std::list<OperationPtr>> receives_;
  std::unordered_map<uint64_t, std::list<Arrival>> arrivals_;
  uint64_t next_order_ = 0;
};

}  // namespace backplane::zmq_plugin
