// SPDX-License-Identifier: Apache-2.0
//
// The layer `chaos`: deterministic fault injection by rules. See share/doc/layers.md.
#include "layer.hpp"
#include "options.hpp"

namespace backplane::chaos {
namespace {

struct Chaos {
  static constexpr const char* id = "chaos";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary =
      "layer: delays, reorders, drops, errors, crashes and stalls by rule, to test programs";
  static constexpr uint32_t kinds = BP_KIND_LAYER;
  static constexpr uint32_t flags = BP_BACKEND_BOUNDED;
  static constexpr std::array options = kOptions;
  static constexpr std::array<bp_capability, 0> capabilities = {};
  static constexpr auto init = make_layer;
};

}  // namespace
}  // namespace backplane::chaos

BACKPLANE_PLUGIN("Backplane", backplane::chaos::Chaos)
