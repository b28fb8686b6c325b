// SPDX-License-Identifier: Apache-2.0
//
// The collectives of a group, in one order on one communicator. NCCL launches in the background and may have to connect
// peers first, so operations wait in a queue until those before them are in their streams. Each submit, wait and poll
// advances the queue.
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
#include "failure.hpp"

namespace backplane::nccl {

class Collectives {
 public:
  Collectives(const GroupContext& context, Communicator& comm);
  ~Collectives();

  // Starts a collective; null: it is done. The Work must not outlive this object. Thread-safe. Blocks, up to the
  // operation's deadline, while too many operations are pending, and until the collective is in its stream. Does not
  // wait for the stream if peers must be connected first.
  std::unique_ptr<sdk::Work> submit(const bp_op& op);
  // Launches queued operations, unless another thread does. True: the queue is not empty. Thread-safe. Blocks while a
  // stream is full: never call it on the thread that aborts.
  bool advance();
  // Whether the queue is not empty. Thread-safe.
  bool launching();

  // The next three are for the poller's thread.

  // When the first unfinished operation began to wait for other ranks. Empty: there is none, or it waits for earlier
  // work in the caller's stream.
  std::optional<std::chrono::steady_clock::time_point> waiting_since();
  // Finishes the operations that have passed. Call before the communicator is aborted.
  void collect_finished();
  // Whether the device uses no buffer any more. Call after the communicator was aborted.
  bool is_idle();

  struct Launch;

 private:
  // Kind, dtype, reduce op, root, and bit width of the size in bytes: NCCL chooses its algorithm by them, and thereby
  // the peers that it connects.
  using Shape = std::tuple<uint32_t, uint32_t, uint32_t, int32_t, int>;

  void await_room(const sdk::Deadline& deadline);
  bool has_room();
  void append(const std::shared_ptr<Launch>& launch);
  void await_stream(const Launch& launch, const sdk::Deadline& deadline);
  bool try_launch(Launch& launch);
  void check_health();
  std::shared_ptr<Launch> first_unfinished();
  void issue(Launch& launch);
  void record_end(Launch& launch);

  const GroupContext c_;
  Communicator& comm_;
  Stream stream_;
  PooledMemory barrier_buffer_;
  // Created here, because an operation that fails may find no memory.
  const sdk::Failure no_memory_{BP_RESOURCE, "nccl: out of memory while launching a collective"};
  const sdk::Failure cancelled_{BP_CANCELLED, "nccl: a collective was cancelled by this rank"};
  const sdk::Failure timed_out_{BP_TIMEOUT, "nccl: a collective timed out; not all ranks took part in it in time"};
  std::mutex mutex_;
  bool is_advancing_ = false;                     // a thread is launching the first of queue_
  std::deque<std::shared_ptr<Launch>> queue_;     // not in their stream yet
  std::deque<std::weak_ptr<Launch>> unfinished_;  // queue_ and the launched ones before it, some of them done
  std::map<Shape, bool> connected_;               // whether an operation of this shape was launched
};

}  // namespace backplane::nccl
