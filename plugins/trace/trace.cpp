// SPDX-License-Identifier: Apache-2.0
//
// The layer `trace`: measures the duration of operations and calls. Writes a Prometheus text file and a Perfetto trace.
// See share/doc/layers.md.
#include "layer.hpp"
#include "options.hpp"

namespace backplane::trace {
namespace {

struct Trace {
  static constexpr const char* id = "trace";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary = "layer: how long operations take, for Prometheus and Perfetto";
  static constexpr uint32_t kinds = BP_KIND_LAYER;
  static constexpr uint32_t flags = BP_BACKEND_BOUNDED;
  static constexpr std::array options = kOptions;
  static constexpr std::array<bp_capability, 0> capabilities = {};
  static constexpr auto init = make_layer;
};

}  // namespace
}  // namespace backplane::trace

BACKPLANE_PLUGIN("Backplane", backplane::trace::Trace)
