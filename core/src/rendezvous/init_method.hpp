// SPDX-License-Identifier: Apache-2.0
//
// Parses init methods.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace backplane::core {

struct InitMethod {
  enum class Scheme {
    kEnvironment,
    kTcp,
    kFile,
    kExchanged,  // like kTcp, at a free port of rank 0, which the launcher tells the others (meeting_place.hpp)
  };

  Scheme scheme = Scheme::kEnvironment;
  std::string host;   // kTcp, an IPv6 address without its brackets; kExchanged: where rank 0 listens
  uint16_t port = 0;  // kTcp
  std::string path;   // kFile
  std::optional<int32_t> rank;
  std::optional<int32_t> world_size;
};

// BP_INVALID with the text and the valid forms.
InitMethod parse_init_method(const std::string& text);

// Makes `method` kTcp at `place`, "host:port" or "[address]:port". BP_INVALID with `what`, which has the address, and
// the valid form, which begins with `prefix`.
void parse_address(const std::string& what, const std::string& prefix, const std::string& place, InitMethod& method);

}  // namespace backplane::core
