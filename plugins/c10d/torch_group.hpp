// SPDX-License-Identifier: Apache-2.0
//
// A group of torch, which is dropped with the last thread that uses it.
#pragma once

#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "python.hpp"

namespace backplane::c10d {

// While it exists, writes of this thread to closed connections, as gloo performs them, raise no SIGPIPE. The threads of
// this backend and of torch block it.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeBlocked() {
    constexpr timespec kNow = {};
    while (!was_pending_ && sigtimedwait(&sigpipe_, nullptr, &kNow) == -1 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_;
};

class TorchGroup {
 public:
  TorchGroup(const Table& table, int64_t handle, int32_t rank, int32_t world_size)
      : rank(rank), world_size(world_size), table_(table), handle_(handle) {}
  ~TorchGroup() {
    const SigpipeBlocked blocked;
    const TableCall call(table_);
    if (call.is_possible()) table_.drop(handle_);
  }
  TorchGroup(const TorchGroup&) = delete;
  TorchGroup& operator=(const TorchGroup&) = delete;

  // All block, and throw what torch raises.
  void send(int32_t peer, const void* data, uint64_t size) const {
    check([&](bp_error* err) { return table_.send(handle_, peer, data, size, err); });
  }
  void recv(int32_t peer, void* data, uint64_t size) const {
    check([&](bp_error* err) { return table_.recv(handle_, peer, data, size, err); });
  }
  void collect(const CollectiveCall& call) const {
    check([&](bp_error* err) { return table_.collect(handle_, &call, err); });
  }
  // Makes blocked calls fail, where torch's backend can. Only the first call has an effect.
  void close() noexcept {
    const SigpipeBlocked blocked;
    const TableCall call(table_);
    if (!closed_.exchange(true) && call.is_possible()) table_.close(handle_);
  }
  bool closed() const noexcept { return closed_.load() || table_.has_ended.load() != 0; }

  const int32_t rank;
  const int32_t world_size;

 private:
  template <typename Call>
  void check(Call&& call) const {
    const TableCall use(table_);
    if (!use.is_possible())
      throw sdk::Failure(BP_CANCELLED, "the program's Python has ended; destroy groups before it ends");
    bp_error err;
    bp_error_init(&err);
    if (call(&err) != BP_OK) throw sdk::Failure(err);
  }

  const Table& table_;
  const int64_t handle_;
  std::atomic<bool> closed_ = false;
};

}  // namespace backplane::c10d
