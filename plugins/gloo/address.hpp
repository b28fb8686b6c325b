// SPDX-License-Identifier: Apache-2.0
//
// Selection of the address at which a rank listens, by the rules in README.md. The choice and its reason are logged.
#pragma once

#include <gloo/transport/tcp/attr.h>

#include <string>

#include "health.hpp"

namespace backplane::gloo {

struct Address {
  ::gloo::transport::tcp::attr attr;  // ready for gloo's device; port 0
  std::string text;                   // "10.0.0.1 (eth0)"
};

// Compares hosts with all other ranks through the store, so every rank must call it. Throws sdk::Failure. `deadline`
// limits the comparison.
Address choose_address(const sdk::Context& context, const base::Deadline& deadline);

}  // namespace backplane::gloo
