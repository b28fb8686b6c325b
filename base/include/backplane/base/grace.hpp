// SPDX-License-Identifier: Apache-2.0
//
// Grace periods in nanoseconds: how long the core and the plugins wait for a report or a requested end before they act
// without it. They depend on each other and on the limits of the ABI. The assertions at the end check the relations.
#pragma once

#include <cstdint>

namespace backplane::base::grace {

inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000 * kMillisecond;

// ---- Limits of a backend, which the core enforces by isolating it

// Limit of abi/process_group.h, ABORT: every operation is terminal, and every blocked call has returned.
inline constexpr int64_t kAbort = 500 * kMillisecond;
// Limit for a call to return after its timeout, and for work_cancel, which does not block.
inline constexpr int64_t kReturn = 50 * kMillisecond;
// Limit for other calls that do not block. Long: a busy machine must not get calls of a correct backend detached.
inline constexpr int64_t kPrompt = 1 * kSecond;
// Limit for destroy, which joins threads.
inline constexpr int64_t kDestroy = 10 * kSecond;

// ---- Operations

// Time for a cancelled operation to end before the whole group is aborted.
inline constexpr int64_t kCancel = 100 * kMillisecond;
// Time after the deadline of a task before the watchdog ends it. The serial executor enforces the deadline itself,
// unless an earlier task blocks it.
inline constexpr int64_t kOverdueTask = 1 * kSecond;
// Time after the deadline of a store call for the reply that names the missing keys.
inline constexpr int64_t kStoreReply = 1 * kSecond;
// Minimum time for running functions to end when their RPC worker shuts down.
inline constexpr int64_t kLeave = 1 * kSecond;

// Time for a device to stop after a failure. Its operations then end even if it has not stopped.
inline constexpr int64_t kDeviceStop = 400 * kMillisecond;
// Time for operations in flight when their group leaves, or when their peer has left in an orderly way.
inline constexpr int64_t kOrderlyLeave = 2 * kSecond;
// Time for all groups and workers that the program left open when it exits.
inline constexpr int64_t kExit = 5 * kSecond;
// Time that a registration of memory waits for a busy library before it fails.
inline constexpr int64_t kRegistration = 100 * kMillisecond;

// ---- Broken connections. A connection often breaks before its cause is known.

// A backend waits this long for a goodbye of the same peer or the loss of another connection. Then it reports the peer
// as lost.
inline constexpr int64_t kBrokenConnection = 250 * kMillisecond;
// The core waits this long for another rank to report the cause of a failed operation.
inline constexpr int64_t kCause = 250 * kMillisecond;
// The core waits this long for the failure detector to report a death, so that all ranks name the same lost rank.
inline constexpr int64_t kDeath = 500 * kMillisecond;

static_assert(kBrokenConnection < kAbort, "a backend must have ended its operations within the limit of abort");
static_assert(kCancel < kAbort, "a cancelled operation leaves time to abort");
static_assert(kReturn < kCancel, "a cancelled operation can end in the time that a call may take to return");
static_assert(kBrokenConnection <= kDeath && kCause <= kDeath,
              "the failure detector decides after backends and other ranks");
static_assert(kDeviceStop < kAbort,
              "operations must have ended within the limit of abort, even if the device does not");
static_assert(kOrderlyLeave < kDestroy, "a group that leaves must not count as stuck");
static_assert(kOrderlyLeave < kExit, "a group that leaves at exit has time to do so");
static_assert(kRegistration < kPrompt, "a registration must not count as stuck");
static_assert(kAbort < kPrompt && kPrompt < kDestroy, "an aborted group ends before its calls count as stuck");

}  // namespace backplane::base::grace
