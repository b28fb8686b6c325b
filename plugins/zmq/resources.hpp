// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace backplane::zmq_plugin {

// libzmq ends the process if it cannot have a thread or a descriptor that it needs itself. So they are tried out before
// libzmq is asked: throws Failure(BP_RESOURCE) if there are not enough for one group now. Starts short-lived threads.
void require_resources(int io_threads);

}  // namespace backplane::zmq_plugin
