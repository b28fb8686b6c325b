// SPDX-License-Identifier: Apache-2.0
//
// Waits of threads for calls: bp_rpc_wait_begin, bp_rpc_wait_briefly and bp_rpc_wait_end.
#pragma once

#include <functional>

namespace backplane::core::rpc {

// Call around a wait, so that another thread of the executor runs functions meanwhile. Calls nest.
void begin_wait();
void end_wait();
// Call between both. Polls until ready() for at most 40 us. Returns false when the thread should sleep: at once if its
// last wait took longer.
bool wait_briefly(const std::function<bool()>& ready);

}  // namespace backplane::core::rpc
