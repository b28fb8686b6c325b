// SPDX-License-Identifier: Apache-2.0
//
// The layer `validate`: detects buffers that are accessed while in use, and values that are not finite. See
// share/doc/layers.md.
#include "layer.hpp"
#include "options.hpp"

namespace backplane::validate {
namespace {

struct Validate {
  static constexpr const char* id = "validate";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary = "layer: finds buffers touched while in use, and NaN";
  static constexpr uint32_t kinds = BP_KIND_LAYER;
  static constexpr uint32_t flags = BP_BACKEND_BOUNDED;
  static constexpr std::array options = kOptions;
  static constexpr std::array<bp_capability, 0> capabilities = {};
  static constexpr auto init = make_layer;
};

}  // namespace
}  // namespace backplane::validate

BACKPLANE_PLUGIN("Backplane", backplane::validate::Validate)
