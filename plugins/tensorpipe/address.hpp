// SPDX-License-Identifier: Apache-2.0
//
// Checks of addresses before TensorPipe uses them: errors on its own threads would end the process.
#pragma once

#include <cstdint>
#include <string>

#include "backplane/base/host.hpp"

namespace backplane::tensorpipe {

// Returns an IPv4 or IPv6 address of this host, not a wildcard, as written in a URL: "10.0.0.1", "[fd00::1]". Throws
// sdk::Failure: BP_INVALID if it is none, BP_RESOURCE if it cannot be listened on now.
std::string checked_address(const std::string& address);

using base::host_identity;

// Throws sdk::Failure if a pipe to `url` (uv or shm) cannot be opened: BP_PEER_LOST if there is no route, BP_RESOURCE
// if descriptors are exhausted. Sends nothing, does not block.
void require_reachable(const std::string& url, int32_t peer);

// Whether this process has enough descriptors for an express connection and the pipe that is opened with it.
bool can_open_express();

// Upper bounds of the descriptors per worker for shm pipes in both directions, and for express connections.
inline constexpr int64_t kShmDescriptorsPerPeer = 56;
inline constexpr int64_t kExpressDescriptorsPerPeer = 14;

}  // namespace backplane::tensorpipe
