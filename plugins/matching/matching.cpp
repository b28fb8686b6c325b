// SPDX-License-Identifier: Apache-2.0
//
// The layer `matching`: tags, any source, any tag and matched probes over a backend that lacks them. See
// share/doc/layers.md.
#include "layer.hpp"

namespace backplane::matching {
namespace {

struct Matching {
  static constexpr const char* id = "matching";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary = "layer: tags, any source, any tag and probes over a backend that lacks them";
  static constexpr uint32_t kinds = BP_KIND_LAYER;
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG | BP_BACKEND_BOUNDED;
  static constexpr std::array<bp_option, 0> options = {};
  static constexpr std::array<bp_capability, 0> capabilities = {};
  static constexpr auto init = make_layer;
};

}  // namespace
}  // namespace backplane::matching

BACKPLANE_PLUGIN("Backplane", backplane::matching::Matching)
