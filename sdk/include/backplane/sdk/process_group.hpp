// SPDX-License-Identifier: Apache-2.0
//
// The classes that a backend author implements: ProcessGroup and, for operations that outlive submit, Work. The rules
// of abi/process_group.h apply. Only this file translates their exceptions to statuses.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "failure.hpp"
#include "host.hpp"
#include "options.hpp"

namespace backplane::sdk {

// Callback for the end of an operation (abi/ext/notify.h). Does not block, throw or call the backend, so
// it may be called under a lock.
struct Notice {
  void (*ended)(void* to) = nullptr;  // may be NULL
  void* to = nullptr;

  // Makes the callback, at most once.
  void give() noexcept {
    if (ended != nullptr) std::exchange(ended, nullptr)(to);
  }
};

// An operation in flight.
class Work {
 public:
  virtual ~Work() = default;

  // Waits up to timeout_ns (0: does not block; BP_NO_TIMEOUT: no limit) for the terminal state. True: done.
  // False: still in flight. Throws Failure if it failed. Later calls give the same result. Never called by two threads
  // at once.
  virtual bool wait(int64_t timeout_ns) = 0;

  // Requests that the operation ends soon with BP_CANCELLED. Any thread. An implementation may ignore it.
  virtual void cancel() noexcept {}

  // Makes `stream` wait for the operation, as abi/ext/device.h says. False: not within timeout_ns. Throws
  // BP_UNSUPPORTED if it does not end in a stream, or the operation's Failure. Any thread, also concurrently with wait.
  // Called only if the group's extension() returns BP_EXT_DEVICE.
  virtual bool wait_on_stream(void* /*stream*/, int64_t /*timeout_ns*/) {
    throw Failure(BP_UNSUPPORTED, "this operation does not end in a stream");
  }

  // Delivers the notice once the operation is terminal, at once if it already is. From now on the operation must
  // progress without calls. False: this operation supports no notice. Called at most once, from any thread, also
  // concurrently with wait. Called only if the group's extension() returns BP_EXT_NOTIFY.
  virtual bool on_end(Notice /*notice*/) { return false; }
};

// This rank's part of a group.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  // Starts a declared operation; nullptr means that it is already done. May block only if op.flags has BP_OP_SYNC. Any
  // thread. `op` and its count arrays are valid until this returns, the buffers until the operation is terminal.
  virtual std::unique_ptr<Work> submit(const bp_op& op) = 0;

  // Makes every operation in flight and every later one fail with `why`, without waiting for peers. Any thread, also
  // while submit or Work::wait blocks in another one.
  virtual void abort(const Failure& why) noexcept = 0;

  // The operations that this group supports, if fewer than the backend's description declares (an old library, a
  // missing device). Empty: all of them. Valid as long as the group.
  virtual std::span<const bp_capability* const> capabilities() const noexcept { return {}; }

  // An optional extension's table by id, or nullptr. An exception counts as nullptr.
  virtual const void* extension(std::string_view) { return nullptr; }
};

// The arguments of init: abi/plugin.h's bp_init with C++ types. The host stays valid until the group is destroyed; this
// object owns everything else.
struct Context {
  explicit Context(const bp_init& init)
      : rank(init.rank),
        world_size(init.world_size),
        device(init.device),
        name(init.name),
        host(init.host),
        options(init.values, init.value_count),
        timeout_ns(init.timeout_ns),
        global_ranks(init.global_ranks, init.global_ranks + init.world_size),
        inner(init.inner),
        inner_backend(BP_HAS(&init, inner_backend) ? init.inner_backend : nullptr) {}

  int32_t rank;
  int32_t world_size;
  int32_t device;  // ordinal, -1 if none was named
  std::string name;
  Host host;
  Options options;
  int64_t timeout_ns;  // for init itself
  std::vector<int32_t> global_ranks;
  const bp_agent* inner;            // layers only
  const bp_backend* inner_backend;  // layers only: the backend that the layers wrap, with its flags
};

namespace detail {

inline ProcessGroup& group_of(void* self) { return *static_cast<ProcessGroup*>(self); }
inline Work& work_of(bp_work* work) { return *reinterpret_cast<Work*>(work); }

inline int32_t submit(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  return guarded(err, [self, op, work] {
    *work = reinterpret_cast<bp_work*>(group_of(self).submit(*op).release());
    return BP_OK;
  });
}
inline int32_t work_wait(void*, bp_work* work, int64_t timeout_ns, bp_error* err) {
  return guarded(err, [work, timeout_ns] { return work_of(work).wait(timeout_ns) ? BP_OK : BP_AGAIN; });
}
inline int32_t work_test(void* self, bp_work* work, bp_error* err) { return work_wait(self, work, 0, err); }
inline void work_cancel(void*, bp_work* work) noexcept { work_of(work).cancel(); }
inline void work_release(void*, bp_work* work) noexcept { delete &work_of(work); }
inline void abort(void* self, const bp_error* why) noexcept { group_of(self).abort(Failure::copy_of(*why)); }
inline void destroy(void* self) noexcept { delete &group_of(self); }
inline const void* extension(void* self, const char* id) noexcept {
  try {
    return id == nullptr ? nullptr : group_of(self).extension(id);
  } catch (...) {
    return nullptr;  // the ABI has no error here; without the extension the core does the same work itself
  }
}

inline constexpr bp_process_group_api kProcessGroupApi = {sizeof(bp_process_group_api),
                                                          0,
                                                          submit,
                                                          work_test,
                                                          work_wait,
                                                          work_cancel,
                                                          work_release,
                                                          abort,
                                                          destroy,
                                                          extension};

}  // namespace detail
}  // namespace backplane::sdk
