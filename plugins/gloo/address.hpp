// SPDX-License-Identifier: Apache-2.0
//
// The address at which a rank listens. Never a silent guess: README.md has the rules, the log says what was chosen.
#pragma once

#include <gloo/transport/tcp/attr.h>

#include <string>

#include "fault.hpp"

namespace backplane::gloo {

struct Address {
  ::gloo::transport::tcp::attr attr;  // ready for gloo's device; port 0
  std::string text;                   // "10.0.0.1 (eth0)"
};

// Asks the other ranks through the store whether all are on one host, so every rank has to call it. Throws
// sdk::Failure; `deadline` is for that question.
Address choose_address(const sdk::Context& context, Clock::time_point deadline);

}  // namespace backplane::gloo
