// SPDX-License-Identifier: Apache-2.0
//
// How a rank ends or stops its process in a case, so that the supervisor expects it.
#pragma once

#include "member.hpp"

namespace backplane::conformance {

// Ends this process by a signal without a finding. The supervisor marks this rank as lost.
[[noreturn]] void die(const Member& member, int signal);
// Stops this process (SIGSTOP) for `time` and returns when it continues. Negative: indefinitely; the rank counts as
// lost after 1 s (scaled).
void freeze(const Member& member, Nanoseconds time);
// Ends this process with _exit(0), an orderly end.
[[noreturn]] void depart(const Member& member);

}  // namespace backplane::conformance
