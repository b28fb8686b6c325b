// SPDX-License-Identifier: Apache-2.0
//
// Where uv listens and what it dials, looked at before TensorPipe does: what fails on its threads ends the process.
#pragma once

#include <cstdint>
#include <string>

namespace backplane::tensorpipe {

// The address, an IPv4 or IPv6 one of this host and no wildcard, as it stands in a URL: "10.0.0.1", "[fd00::1]". Throws
// sdk::Failure: BP_INVALID if it is not, BP_RESOURCE if nothing can listen there now.
std::string checked_address(const std::string& address);

// "uv://127.0.0.1:1234": can it be reached from its own host alone?
bool is_loopback(const std::string& url);

// Tells hosts apart, and network namespaces of one host: "<boot id>/net:[4026531840]".
std::string host_identity();

// Throws sdk::Failure if a pipe to `url`, a uv or shm one, could not even begin: BP_PEER_LOST if no route leads to it,
// BP_RESOURCE if this process has not the descriptors that a pipe takes. Sends nothing, does not block.
void require_way(const std::string& url, int32_t peer);

// Whether this process has the descriptors that an express connection takes, and the pipe beside it, which is being
// made.
bool has_room_for_express();

// How many descriptors the pipes to and from one worker take at most, over shm, and the express connections beside
// them.
inline constexpr int64_t kShmDescriptorsPerPeer = 56;
inline constexpr int64_t kExpressDescriptorsPerPeer = 14;

}  // namespace backplane::tensorpipe
