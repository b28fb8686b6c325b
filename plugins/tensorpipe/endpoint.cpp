// SPDX-License-Identifier: Apache-2.0
#include "endpoint.hpp"

#include <cstdlib>
#include <sstream>

#include "address.hpp"
#include "backplane/sdk/failure.hpp"
#include "backplane/sdk/listening.hpp"

namespace backplane::tensorpipe {
namespace {

std::string transports_of(const Endpoint& endpoint) {
  std::string names(endpoint.uv.empty() ? "" : "uv");
  if (!endpoint.shm.empty()) names.append(names.empty() ? "" : "+").append("shm");
  return names;
}

}  // namespace

std::string host_key(int32_t rank) { return "place/" + std::to_string(rank); }
std::string endpoint_key(int32_t rank) { return "worker/" + std::to_string(rank); }

// Format: one line per field, then the token, then a line with the version (since version 2) and the express address
// (since version 3). Older workers ignore the lines after the token.
std::string format_endpoint(const Endpoint& endpoint) {
  std::string text;
  for (const std::string* line : {&endpoint.host, &endpoint.uv, &endpoint.shm, &endpoint.devices.name}) {
    text.append(*line).append("\n");
  }
  text.append(std::to_string(endpoint.devices.count)).append("\n");
  text.append(format_device_maps(endpoint.devices.maps)).append("\n");
  text.append(endpoint.token.data(), endpoint.token.size());
  if (endpoint.version >= 2) text.append(std::to_string(endpoint.version)).append("\n");
  if (endpoint.version >= 3) text.append(endpoint.express).append("\n");
  return text;
}

Endpoint parse_endpoint(const std::string& text, int32_t rank) {
  Endpoint endpoint;
  std::istringstream lines(text);
  std::string count;
  std::string maps;
  for (std::string* line : {&endpoint.host, &endpoint.uv, &endpoint.shm, &endpoint.devices.name, &count, &maps}) {
    if (!std::getline(lines, *line))
      throw sdk::Failure(BP_INVALID, "malformed endpoint of a worker in the store", rank);
  }
  if (!lines.read(endpoint.token.data(), static_cast<std::streamsize>(endpoint.token.size()))) {
    throw sdk::Failure(BP_INVALID, "malformed endpoint of a worker in the store", rank);
  }
  endpoint.version = 1;
  std::string version;
  if (std::getline(lines, version)) endpoint.version = std::atoi(version.c_str());
  if (endpoint.version >= 3) std::getline(lines, endpoint.express);
  if (!version.empty() && lines.eof())
    throw sdk::Failure(BP_INVALID, "malformed endpoint of a worker in the store", rank);
  endpoint.devices.count = std::atoi(count.c_str());
  endpoint.devices.maps = parse_device_maps(maps);
  return endpoint;
}

void require_same_version(const Endpoint& mine, const Endpoint& other, int32_t rank) {
  if (mine.version == other.version) return;
  throw sdk::Failure(BP_UNSUPPORTED,
                     "worker " + other.devices.name + " uses version " + std::to_string(other.version) +
                         " of the tensorpipe protocol, worker " + mine.devices.name + " version " +
                         std::to_string(mine.version) + "; run the same version of Backplane on all workers",
                     rank);
}

const std::string& select_url(const Endpoint& mine, const Endpoint& other, int32_t rank) {
  const bool together = mine.host == other.host;
  if (together && !mine.shm.empty() && !other.shm.empty()) return other.shm;
  const std::string both = "workers " + mine.devices.name + " and " + other.devices.name;
  if (mine.uv.empty() || other.uv.empty()) {
    throw sdk::Failure(BP_INVALID,
                       both + " have no transport in common" + (together ? "" : " (they are on different hosts)") +
                           ": " + transports_of(mine) + " here, " + transports_of(other) +
                           " there; give all workers the same option transports, or none",
                       rank);
  }
  sdk::refuse_loopback_between_hosts({"worker " + mine.devices.name, mine.host, sdk::address_in(mine.uv)},
                                     {"worker " + other.devices.name, other.host, sdk::address_in(other.uv)}, rank);
  return other.uv;
}

}  // namespace backplane::tensorpipe
