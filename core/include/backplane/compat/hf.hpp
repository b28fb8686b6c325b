// SPDX-License-Identifier: Apache-2.0
//
// The backends of hfai.distributed, which are all zmq here.
//
//     compat::init_process_group({.backend = compat::HF_ZMQ_LOCAL_BACKEND});
#pragma once

#include <algorithm>
#include <cctype>
#include <string>

#include "backplane/distributed.hpp"

namespace backplane::compat {

// Becomes the default group.
inline constexpr const char* HF_ZMQ_BACKEND = "hf_zmq";
// Returns a group and leaves the default group unchanged, for use inside libraries.
inline constexpr const char* HF_ZMQ_LOCAL_BACKEND = "hf_zmq_local";
// An alias of HF_ZMQ_BACKEND.
inline constexpr const char* HF_BARRIER_BACKEND = HF_ZMQ_BACKEND;

// Like backplane::init_process_group; options.backend may also be one of these names or "hf_barrier", in any case,
// alone or with options of zmq ("hf_zmq?iface=eth0").
inline ProcessGroup init_process_group(GroupOptions options) {
  const size_t end = std::min(options.backend.find('?'), options.backend.size());
  std::string name = options.backend.substr(0, end);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool is_local = name == HF_ZMQ_LOCAL_BACKEND;
  if (is_local || name == HF_ZMQ_BACKEND || name == "hf_barrier") options.backend.replace(0, end, "zmq");
  return is_local ? ProcessGroup::create(options) : backplane::init_process_group(options);
}

}  // namespace backplane::compat
