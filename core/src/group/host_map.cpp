// SPDX-License-Identifier: Apache-2.0
#include "group/host_map.hpp"

#include <fmt/format.h>

#include <map>
#include <sstream>

namespace backplane::core {
namespace {

std::string host_key(int32_t rank) { return fmt::format("host/{}", rank); }

// The last rank collects all names.
std::string collected(Store& store, int32_t world_size, Deadline deadline) {
  std::map<std::string, int32_t> numbers;
  std::string text;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const std::string host = store.get(host_key(rank), deadline);
    const auto number = static_cast<int32_t>(numbers.size());
    text += fmt::format("{} ", numbers.try_emplace(host, number).first->second);
  }
  return text;
}

}  // namespace

std::vector<int32_t> host_numbers(Store& store, int32_t rank, int32_t world_size, const std::string& host,
                                  Deadline deadline) {
  constexpr const char* kNumbers = "numbers";
  store.set(host_key(rank), host, deadline);
  if (store.add("named", 1, deadline) == world_size) {
    store.set(kNumbers, collected(store, world_size, deadline), deadline);
  }
  std::istringstream in(store.get(kNumbers, deadline));
  std::vector<int32_t> hosts(static_cast<size_t>(world_size));
  for (int32_t& each : hosts) {
    if (!(in >> each)) fail(BP_INTERNAL, "the store has no complete list of hosts");
  }
  return hosts;
}

}  // namespace backplane::core
