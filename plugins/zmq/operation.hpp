// SPDX-License-Identifier: Apache-2.0
//
// One send or receive from submit to its terminal state. Guarded by the group's mutex but for `lent`.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backplane/sdk/sdk.hpp"

namespace backplane::zmq_plugin {

struct Operation {
  bool sends = false;
  int32_t peer = BP_ANY_SOURCE;  // of a receive: who was asked for, until a message is matched; then the sender
  uint64_t tag = 0;
  uint64_t id = 0;            // ascending in the order of submission
  std::byte* data = nullptr;  // the user's buffer; a send only reads it
  uint64_t size = 0;          // bytes of the message, or of the receive buffer
  bp_result* result = nullptr;

  // A message whose bytes go from the user's buffer: by rendezvous, or at once.
  bool any_source = false;
  bool at_once = false;
  bool is_probed = false;  // a receive of a message that was probed: no other will do
  bool matched = false;    // the other rank waits for it; if at once, so to speak
  uint64_t remote_id = 0;  // the operation at the other end
  uint64_t total = 0;      // receive: bytes of the message
  uint64_t moved = 0;      // bytes received, or handed to libzmq
  // Pieces of the buffer in libzmq's hands, plus one while there may come more. The buffer is busy until this is 0.
  std::atomic<uint32_t> lent = 0;

  bool done = false;
  std::optional<sdk::Failure> failure;        // valid once done; before, what a lent send is going to fail with
  std::condition_variable* waiter = nullptr;  // a thread that sleeps until done
  sdk::Notice notice;                         // given when it is done

  void finish();
  void fail(const sdk::Failure& why);
};

using OperationPtr = std::shared_ptr<Operation>;

// Sends whose last piece libzmq has given back. Filled by libzmq's threads, emptied by the group's.
class Releases {
 public:
  // `wake_fd`: an eventfd to be written to; outlives this object.
  explicit Releases(int wake_fd) : wake_fd_(wake_fd) {}

  // Gives back one piece. Any thread.
  void release(const OperationPtr& send);
  std::vector<OperationPtr> take();

 private:
  const int wake_fd_;
  std::atomic<bool> any_ = false;
  std::mutex mutex_;
  std::vector<OperationPtr> released_;
};

}  // namespace backplane::zmq_plugin
