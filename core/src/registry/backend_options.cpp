// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "backplane/abi/ext/plan.h"
#include "backplane/backplane.h"
#include "error.hpp"
#include "plugin/host.hpp"
#include "registry/choice.hpp"

namespace backplane::core {

BackendOptions::BackendOptions(const Member& member, KeyValues values, int64_t rpc_timeout_ns,
                               const std::string& init_method)
    : member_(member), values_(std::move(values)), rpc_timeout_ns_(rpc_timeout_ns) {
  const bp_backend& backend = *member.backend;
  if (backend.construct_options == nullptr) return;
  std::vector<bp_key_value> texts;
  for (const auto& [key, value] : values_) texts.push_back({key.c_str(), value.c_str()});
  const bp_options_request request = {sizeof(bp_options_request), static_cast<uint32_t>(texts.size()), texts.data(),
                                      rpc_timeout_ns, init_method.c_str()};
  bp_error err;
  bp_error_init(&err);
  const int32_t status = backend.construct_options(&backend, &request, &native_, &err);
  if (status != BP_OK) throw_report(status, err, "options of " + member.id);
}

BackendOptions::BackendOptions(const Member& composite, std::vector<std::shared_ptr<const BackendOptions>> parts)
    : member_(composite), rpc_timeout_ns_(BP_DEFAULT_RPC_TIMEOUT_NS), parts_(std::move(parts)) {}

BackendOptions::~BackendOptions() {
  const bp_backend& backend = *member_.backend;
  if (native_ != nullptr && backend.destroy_options != nullptr) backend.destroy_options(&backend, native_);
}

std::string BackendOptions::fingerprint() const {
  std::string text = parts_.empty() ? member_.id : "";
  for (const auto& part : parts_) text += (text.empty() ? "" : " + ") + part->fingerprint();
  for (size_t i = 0; i < values_.size(); ++i) {
    const uint32_t flags = member_.backend->options[i]->flags;
    if ((flags & BP_OPTION_SAME_ON_ALL) == 0 || (flags & BP_OPTION_SECRET) != 0) continue;
    text += fmt::format(" {}={}", values_[i].first, values_[i].second);
  }
  return text;
}

std::shared_ptr<const BackendOptions> make_options(const Member& member, const KeyValues& given) {
  return std::make_shared<BackendOptions>(member, complete_options(*member.backend, given), BP_DEFAULT_RPC_TIMEOUT_NS,
                                          "env://");
}

std::shared_ptr<const BackendOptions> make_composite_options(const Member& composite, const KeyValues& inside,
                                                             const KeyValues& between) {
  std::vector<std::shared_ptr<const BackendOptions>> parts;
  parts.push_back(make_options(*composite.parts[0], inside));
  parts.push_back(make_options(*composite.parts[1], between));
  return std::make_shared<BackendOptions>(composite, std::move(parts));
}

std::string probe(const Member& member) { return probe_for(member, 0); }

std::string probe_for(const Member& member, int32_t world_size) {
  const bp_backend& backend = *member.backend;
  if (backend.probe == nullptr) return "";
  const bp_plan_api plan = {sizeof plan, world_size};
  Host host(member.id);
  if (world_size > 0) host.offer(BP_EXT_PLAN, &plan);
  bp_error err;
  bp_error_init(&err);
  const int32_t status = backend.probe(&backend, host.table(), &err);
  if (status != BP_OK) throw_report(status, err, "");
  return host.remarks();
}

}  // namespace backplane::core
