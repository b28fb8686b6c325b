// SPDX-License-Identifier: Apache-2.0
#include "specimen.hpp"

namespace backplane::specimen {

Settings::Settings(const sdk::Options& options)
    : address(options.text("address")),
      port(static_cast<uint16_t>(options.integer("port"))),
      backlog(static_cast<int>(options.integer("backlog"))),
      eager_limit(static_cast<uint64_t>(options.integer("eager_limit"))),
      window(static_cast<uint64_t>(options.integer("eager_window"))),
      linger(options.integer("linger")),
      handshake(options.integer("handshake_timeout")),
      retry_growth(options.real("retry_growth")),
      descending(options.text("order") == "descending"),
      secret() {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);  // FNV-1a
  size_t at = 0;
  for (const char c : options.text("secret")) {
    hash = (hash ^ static_cast<uint8_t>(c)) * UINT64_C(0x100000001b3);
    secret[at++ % secret.size()] ^= static_cast<uint8_t>(hash >> 32);
  }
}

}  // namespace backplane::specimen
