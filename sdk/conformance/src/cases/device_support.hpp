// SPDX-License-Identifier: Apache-2.0
//
// Shared by the cases of device: "backplane.device/1" with C++ types. They use the device's default stream, the only
// one that a program can name without the device's own API.
#pragma once

#include <memory>
#include <string>

#include "backplane/abi/ext/device.h"
#include "memory_support.hpp"

namespace backplane::conformance {

// An agent whose backend has the extension, and memory of its device.
struct OnDevice {
  std::unique_ptr<Agent> agent;
  const bp_device_api& api;
  Source source;

  Piece piece(Rank& rank, uint64_t bytes) const { return Piece(rank, source, bytes); }
  bp_buffer buffer(const Piece& piece, uint64_t from, uint64_t bytes) const {
    return {piece.data() + from, bytes, source.memory, source.device};
  }
  bp_buffer buffer(const Piece& piece) const { return buffer(piece, 0, piece.size()); }
  bp_op send(int32_t peer, uint64_t tag, const Piece& piece) const;
  bp_op recv(int32_t peer, uint64_t tag, const Piece& piece) const;
  // Makes the default stream wait for it.
  Outcome wait_on_stream(const Pending& pending, Nanoseconds timeout) const;
};

// Skips the case if the backend lacks the extension or the memory.
OnDevice open_on_device(Rank& rank);

}  // namespace backplane::conformance
