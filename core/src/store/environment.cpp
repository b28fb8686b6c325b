// SPDX-License-Identifier: Apache-2.0
#include "store/environment.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "error.hpp"
#include "options/option_value.hpp"
#include "store/wording.hpp"

namespace backplane::core {
namespace {

struct Names {
  const char* rank;
  const char* world_size;
};

// In order of preference: what the user or torchrun sets, Open MPI, MPICH's Hydra (also Intel MPI), Slurm.
constexpr std::array<Names, 4> kLaunchers{{{"RANK", "WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"}}};

std::optional<int32_t> first_of(const char* Names::*member, int64_t least) {
  for (const auto& names : kLaunchers) {
    if (const auto text = variable(names.*member)) {
      return static_cast<int32_t>(parse_number(names.*member, *text, least, std::numeric_limits<int32_t>::max()));
    }
  }
  return std::nullopt;
}

int64_t duration_variable(const char* name, int64_t fallback_ns) {
  const auto text = variable(name);
  if (!text) return fallback_ns;
  bp_option option = {};
  option.struct_size = sizeof(bp_option);
  option.type = BP_OPTION_DURATION;
  option.min = static_cast<double>(kShortestBeatNs);
  option.max = static_cast<double>(kLongestBeatNs);
  const OptionValue value = read_option(option, *text);
  if (!value.problem.empty()) fail(BP_INVALID, "{} is {}, which {}", name, quoted(*text), value.problem);
  return std::stoll(value.text);
}

}  // namespace

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool variable_is_true(const char* name) {
  std::string value = variable(name).value_or("");
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

int64_t parse_number(const std::string& what, const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < least || value > most) {
    fail(BP_INVALID, "{} is {}; give a whole number from {} to {}", what, quoted(text), least, most);
  }
  return value;
}

uint16_t parse_port(const std::string& what, const std::string& text) {
  return static_cast<uint16_t>(parse_number(what, text, 1, 65535));
}

Heartbeat environment_heartbeat() {
  Heartbeat heartbeat;
  heartbeat.interval_ns = duration_variable("BACKPLANE_HEARTBEAT_INTERVAL", heartbeat.interval_ns);
  heartbeat.limit_ns = duration_variable("BACKPLANE_HEARTBEAT_LIMIT", heartbeat.limit_ns);
  if (!sound(heartbeat)) {
    fail(
        BP_INVALID,
        "BACKPLANE_HEARTBEAT_LIMIT ({}) is less than twice BACKPLANE_HEARTBEAT_INTERVAL ({}), so that one late sign of "
        "life would count as a death; raise the limit or lower the interval",
        duration_text(heartbeat.limit_ns), duration_text(heartbeat.interval_ns));
  }
  return heartbeat;
}

std::optional<int32_t> environment_rank() { return first_of(&Names::rank, 0); }

std::optional<int32_t> environment_world_size() { return first_of(&Names::world_size, 1); }

}  // namespace backplane::core
