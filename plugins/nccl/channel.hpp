// SPDX-License-Identifier: Apache-2.0
//
// One direction between two ranks: a communicator of the two and a stream, in which one message follows the other. Both
// ends enter the same messages in the same order, so that a channel never waits for another one.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "backplane/sdk/completion.hpp"
#include "communicator.hpp"
#include "device.hpp"

namespace backplane::nccl {

// A message at one end.
struct Transfer {
  void* data = nullptr;  // the caller's
  uint64_t bytes = 0;
  bool is_host = false;  // stage it
  Event after;           // what the caller's stream held when the message was submitted
  std::shared_ptr<sdk::Completion> done;
};

// Used by one thread.
class Channel {
 public:
  struct Config {
    const Api& api;
    int device;
    Pool& pool;
    int max_ctas;
  };

  Channel(const Config& config, bool is_sender, const ncclUniqueId& id);

  void enter(Transfer transfer) { waiting_.push_back(std::move(transfer)); }
  // Gets on with what was entered, as far as it goes. True if something happened. Throws what NCCL reports.
  bool progress();
  bool busy() const { return !waiting_.empty() || issued_ || !moving_.empty(); }
  // Fails all that is not done, once the device has let go of it.
  void fail(const sdk::Failure& why) noexcept;
  void close(int64_t timeout_ns) { comm_.close(timeout_ns); }

 private:
  struct Moving {
    Transfer transfer;
    Piece staged;  // host buffers: on the device ...
    Piece pinned;  // ... and on the way there
    Event moved;
  };
  void issue();
  void enter_stream();
  bool finish_moved();

  const Config c_;
  const bool is_sender_;
  Stream stream_;
  std::deque<Transfer> waiting_;
  std::optional<Moving> issued_;  // the first of waiting_, being launched
  std::deque<Moving> moving_;
  Communicator comm_;
};

}  // namespace backplane::nccl
