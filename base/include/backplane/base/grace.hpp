// SPDX-License-Identifier: Apache-2.0
//
// Grace periods, in nanoseconds: how long the core and the plugins wait for a report, or for a requested end, before
// they act without it. They depend on each other and on the limits of the ABI; the assertions at the end
// keep the relations.
#pragma once

#include <cstdint>

namespace backplane::base::grace {

inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000 * kMillisecond;

// ---- Limits of a backend, which the core enforces by isolating it

// abi/process_group.h, ABORT: until every operation is terminal and every blocked call has returned.
inline constexpr int64_t kAbort = 500 * kMillisecond;
// For a call with a timeout to return after it, and for work_cancel, which does not block.
inline constexpr int64_t kReturn = 50 * kMillisecond;
// For other calls that do not block. Long, since a busy machine must not isolate a correct backend.
inline constexpr int64_t kPrompt = 1 * kSecond;
// For destroy, which joins threads.
inline constexpr int64_t kDestroy = 10 * kSecond;

// ---- Operations

// For an operation that was cancelled, before all of its group is aborted.
inline constexpr int64_t kCancel = 100 * kMillisecond;
// After the deadline of a task, before the watchdog ends it. The group's thread enforces the deadline itself unless an
// earlier task blocks it.
inline constexpr int64_t kOverdueTask = 1 * kSecond;
// After the deadline of a store call, for the reply that names the missing keys.
inline constexpr int64_t kStoreReply = 1 * kSecond;
// Minimum time for running functions of an RPC worker that shuts down.
inline constexpr int64_t kLeave = 1 * kSecond;

// ---- Broken connections. A connection often breaks before its cause is known.

// A backend, for a goodbye of the same peer or the loss of another connection, before it reports the peer as lost.
inline constexpr int64_t kBrokenConnection = 250 * kMillisecond;
// The core, for the cause of a failed operation that another rank reports to all.
inline constexpr int64_t kCause = 250 * kMillisecond;
// The core, for the failure detector's report of a death, so that all ranks name the same lost rank.
inline constexpr int64_t kDeath = 500 * kMillisecond;

static_assert(kBrokenConnection < kAbort, "a backend must have ended its operations within the limit of abort");
static_assert(kCancel < kAbort, "a cancelled operation leaves time to abort");
static_assert(kReturn < kCancel, "a cancelled operation can end in the time that a call may take to return");
static_assert(kBrokenConnection <= kDeath && kCause <= kDeath,
              "the failure detector decides after backends and other ranks");
static_assert(kAbort < kPrompt && kPrompt < kDestroy, "an aborted group ends before its calls count as stuck");

}  // namespace backplane::base::grace
