// SPDX-License-Identifier: Apache-2.0
//
// Names of the zmq backend in hfai.distributed, for GroupOptions::backend.
#pragma once

namespace backplane::compat {

// Becomes the default group.
inline constexpr const char* HF_ZMQ_BACKEND = "hf_zmq";
// Returns a group and leaves the default group alone, for use inside libraries.
inline constexpr const char* HF_ZMQ_LOCAL_BACKEND = "hf_zmq_local";
// An alias of HF_ZMQ_BACKEND.
inline constexpr const char* HF_BARRIER_BACKEND = HF_ZMQ_BACKEND;

}  // namespace backplane::compat
