// SPDX-License-Identifier: Apache-2.0
#include "liveness/heartbeat.hpp"

#include "environment.hpp"
#include "error.hpp"
#include "options/option_value.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

int64_t duration_variable(const char* name, int64_t fallback_ns) {
  const auto text = variable(name);
  if (!text) return fallback_ns;
  bp_option option = {};
  option.struct_size = sizeof(bp_option);
  option.type = BP_OPTION_DURATION;
  option.min = static_cast<double>(kMinHeartbeatNs);
  option.max = static_cast<double>(kMaxHeartbeatNs);
  const OptionValue value = read_option(option, *text);
  if (!value.problem.empty()) fail(BP_INVALID, "{} is {}, which {}", name, quoted(*text), value.problem);
  return std::stoll(value.text);
}

}  // namespace

Heartbeat environment_heartbeat() {
  Heartbeat heartbeat;
  heartbeat.interval_ns = duration_variable("BACKPLANE_HEARTBEAT_INTERVAL", heartbeat.interval_ns);
  heartbeat.limit_ns = duration_variable("BACKPLANE_HEARTBEAT_LIMIT", heartbeat.limit_ns);
  if (!is_valid(heartbeat)) {
    fail(BP_INVALID,
         "BACKPLANE_HEARTBEAT_LIMIT ({}) is less than twice BACKPLANE_HEARTBEAT_INTERVAL ({}), so that one late "
         "heartbeat would count as a death; raise the limit or lower the interval",
         duration_text(heartbeat.limit_ns), duration_text(heartbeat.interval_ns));
  }
  return heartbeat;
}

std::string silence_text(const Heartbeat& heartbeat) {
  return fmt::format("no heartbeat from it for {}; it may be suspended, or its network down",
                     duration_text(heartbeat.limit_ns));
}

}  // namespace backplane::core
