// SPDX-License-Identifier: Apache-2.0
//
// What each worker leaves in the job's store, and how others reach it. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "device_maps.hpp"

namespace backplane::tensorpipe {

// What proves to a worker that it is meant, and by whom: it has put the token into the job's store.
using Token = std::array<char, 16>;

// Of what stands in messages. Workers that speak different ones do not start.
inline constexpr int kWireVersion = 3;  // 2: all along pipes; 1: no buffers of devices, and no version in the card

struct Card {
  Token token = {};
  std::string host;  // host_identity()
  std::string uv;    // URLs; empty: it has not that transport
  std::string shm;
  WorkerDevices devices;
  int wire = kWireVersion;
  std::string express = {};  // where it takes express connections; empty: it does not
};

// Under these keys: where shared memory is within the worker's reach, told before it listens; and its card.
std::string place_key(int32_t rank);
std::string card_key(int32_t rank);

std::string format_card(const Card& card);
// Throws sdk::Failure (BP_INVALID) that names `rank` if this is no card.
Card parse_card(const std::string& text, int32_t rank);

// Throws sdk::Failure (BP_UNSUPPORTED) that names both workers unless they speak the same version.
void require_same_wire(const Card& mine, const Card& other, int32_t rank);

// The URL by which worker `mine` reaches worker `other` (of rank `rank`): shm within one host, else uv. Throws
// sdk::Failure (BP_INVALID) if they have no transport in common, or are on different hosts and one of them listens on a
// loopback address, which there means somebody else; it says which option helps.
const std::string& way_to(const Card& mine, const Card& other, int32_t rank);

}  // namespace backplane::tensorpipe
