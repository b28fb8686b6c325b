// SPDX-License-Identifier: Apache-2.0
//
// The endpoint that each worker publishes in the job's store. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "device_maps.hpp"

namespace backplane::tensorpipe {

// A random number that authenticates messages: only workers of the job can read it in the store.
using Token = std::array<char, 16>;

// Version of the message format. Workers with different versions do not start.
inline constexpr int kProtocolVersion =
    3;  // 2: no express connections; 1: no device buffers, and no version in the endpoint

struct Endpoint {
  Token token = {};
  std::string host;  // host_identity()
  std::string uv;    // URLs; empty: transport not available
  std::string shm;
  WorkerDevices devices;
  int version = kProtocolVersion;
  std::string express = {};  // address for express connections; empty: none accepted
};

// Store keys: of the host on which a worker has shared memory, published before it listens; of its endpoint.
std::string host_key(int32_t rank);
std::string endpoint_key(int32_t rank);

std::string format_endpoint(const Endpoint& endpoint);
// Throws sdk::Failure (BP_INVALID) that names `rank` if the text is malformed.
Endpoint parse_endpoint(const std::string& text, int32_t rank);

// Throws sdk::Failure (BP_UNSUPPORTED) naming both workers if the versions differ.
void require_same_version(const Endpoint& mine, const Endpoint& other, int32_t rank);

// Returns the URL by which worker `mine` reaches worker `other` of rank `rank`: shm on the same host, else uv. Throws
// sdk::Failure (BP_INVALID) with the option to set if they have no common transport, or are on different hosts and one
// listens on a loopback address.
const std::string& select_url(const Endpoint& mine, const Endpoint& other, int32_t rank);

}  // namespace backplane::tensorpipe
