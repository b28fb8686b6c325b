// SPDX-License-Identifier: Apache-2.0
#include "rpc/functions.hpp"

#include <map>
#include <mutex>
#include <vector>

#include "error.hpp"
#include "options/nearest.hpp"
#include "process.hpp"

namespace backplane::core::rpc {
namespace {

constexpr size_t kMaxFunctionNameBytes = 255;

struct Functions {
  PerProcess<std::mutex> mutex;
  std::map<std::string, Function> by_name;
};

Functions& functions() {
  static Functions* const instance = new Functions;  // other threads may use it while the process ends
  return *instance;
}

}  // namespace

void register_function(const std::string& name, Function function) {
  const std::lock_guard lock(*functions().mutex);
  if (name.empty() || name.size() > kMaxFunctionNameBytes) {
    fail(BP_INVALID, "the name of a function must have 1 to {} bytes; this one has {}", kMaxFunctionNameBytes,
         name.size());
  }
  if (!functions().by_name.emplace(name, function).second) {
    fail(BP_INVALID, "function '{}' is registered already; give this one another name", name);
  }
}

std::optional<Function> find_function(const std::string& name) {
  const std::lock_guard lock(*functions().mutex);
  const auto found = functions().by_name.find(name);
  return found == functions().by_name.end() ? std::nullopt : std::optional(found->second);
}

void fail_unknown_function(const std::string& name) {
  // A peer sends any length.
  if (name.size() > kMaxFunctionNameBytes) fail(BP_INVALID, "no function has a name of {} bytes", name.size());
  std::vector<std::string> names;
  {
    const std::lock_guard lock(*functions().mutex);
    for (const auto& [known, function] : functions().by_name) names.push_back(known);
  }
  fail(BP_INVALID, "no function '{}' is registered there.{} Register it before init_rpc on every worker", name,
       did_you_mean(name, names));
}

}  // namespace backplane::core::rpc
