// SPDX-License-Identifier: Apache-2.0
//
// A group's collectives: one communicator, one order. An operation is launched as soon as those before it are in their
// streams. NCCL launches in the background and may first connect peers, so operations wait in a queue, which every
// submit, wait and poll advances.
//
// Operations on device buffers run in the caller's stream, those on staged host buffers in a stream of the group.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "backplane/sdk/device.hpp"
#include "backplane/sdk/sockets.hpp"
#include "communicator.hpp"
#include "device.hpp"
#include "fate.hpp"

namespace backplane::nccl {

class Collectives {
 public:
  struct Config {
    const Api& api;
    int device;
    int32_t rank;
    int32_t size;
    Fate& fate;
    Pool& pool;
    Communicator& comm;
  };

  explicit Collectives(const Config& config);
  ~Collectives();

  // A collective; null: it is done. The Work must not outlive this object. Any thread. Blocks, up to its deadline,
  // until it is in its stream, unless peers have to be connected first, and while too many are before it.
  std::unique_ptr<sdk::Work> submit(const bp_op& op);
  // Launches what can be launched, unless another thread is at it. True: something is still on its way into its stream.
  // Any thread; blocks while the queue of a stream is full, so not the one that aborts.
  bool advance();
  // Is something still on its way into its stream? Any thread.
  bool launching();
  // Since when the first operation that is not done has been waiting for the other ranks; nothing: there is none, or it
  // waits for what the caller's stream held before it. The poller's thread.
  std::optional<std::chrono::steady_clock::time_point> waits_since();
  // Before the communicator is aborted: what the device has done by now stays done. The poller's thread, as the next.
  void look_once_more();
  // After that: has the device let go of all buffers?
  bool is_still();

  struct Launch;

 private:
  // Kind, dtype, reduce op, root and size (how many bits the number of its bytes has): by them NCCL chooses how it
  // does it, and so whom it connects.
  using Shape = std::tuple<uint32_t, uint32_t, uint32_t, int32_t, int>;

  void await_room(const sdk::Deadline& deadline);
  bool has_room();
  void append(const std::shared_ptr<Launch>& launch);
  void await_stream(const Launch& launch, const sdk::Deadline& deadline);
  bool try_launch(Launch& launch);
  void check_health();
  std::shared_ptr<Launch> first_unfinished();
  void begin(Launch& launch);
  void enter(Launch& launch);

  const Config c_;
  Stream stream_;
  Piece token_;  // for barriers
  // Made while there is some.
  const sdk::Failure no_memory_{BP_RESOURCE, "nccl: there is no memory to launch a collective"};
  const sdk::Failure cancelled_{BP_CANCELLED, "nccl: a collective was cancelled by this rank"};
  const sdk::Failure late_{BP_TIMEOUT, "nccl: the other ranks did not take part in a collective in time"};
  std::mutex mutex_;
  bool is_advancing_ = false;                  // a thread launches the first one
  std::deque<std::shared_ptr<Launch>> queue_;  // the first may have been issued
  std::deque<std::weak_ptr<Launch>>
      submitted_;                    // those of the queue, and before them those launched, some of them done
  std::map<Shape, bool> connected_;  // has one like that been launched?
};

}  // namespace backplane::nccl
