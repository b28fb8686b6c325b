// SPDX-License-Identifier: Apache-2.0
#include "registry/report.hpp"

#include <nlohmann/json.hpp>

#include "error.hpp"
#include "reduce/combine.hpp"

namespace backplane::core {
namespace {

using Json = nlohmann::ordered_json;

struct NamedBit {
  uint32_t bit;
  const char* name;
};
constexpr NamedBit kKinds[] = {
    {BP_KIND_PROCESS_GROUP, "process_group"}, {BP_KIND_RPC, "rpc"}, {BP_KIND_LAYER, "layer"}};
constexpr NamedBit kFlags[] = {{BP_BACKEND_TAGS, "tags"},
                               {BP_BACKEND_ANY_SOURCE, "any_source"},
                               {BP_BACKEND_ANY_TAG, "any_tag"},
                               {BP_BACKEND_AUTONOMOUS, "autonomous"},
                               {BP_BACKEND_THREADS, "threads"},
                               {BP_BACKEND_LOCAL, "local"},
                               {BP_BACKEND_ONE_PROCESS, "one_process"},
                               {BP_BACKEND_BOUNDED, "bounded"},
                               {BP_BACKEND_AUTHENTICATES, "authenticates"},
                               {BP_BACKEND_RPC_OVER_GROUP, "rpc_over_group"},
                               {BP_BACKEND_BLOCKING_INIT, "blocking_init"},
                               {BP_BACKEND_ONE_WORLD, "one_world"}};
constexpr const char* kTypes[] = {"string", "int", "float", "bool", "enum", "duration", "bytes"};
constexpr const char* kMemories[] = {"cpu", "cuda"};

template <size_t N>
Json names(uint32_t mask, const NamedBit (&bits)[N]) {
  Json list = Json::array();
  for (const auto& [bit, name] : bits) {
    if ((mask & bit) != 0) list.push_back(name);
  }
  return list;
}

template <typename Name>
Json names(uint64_t mask, uint32_t count, const Name& name) {
  Json list = Json::array();
  for (uint32_t i = 0; i < count; ++i) {
    if ((mask & BP_BIT(i)) != 0) list.push_back(name(i));
  }
  return list;
}

// How the backend authenticates peers in a job with a secret: by proof, because there is no other process, or not at
// all.
const char* auth(uint32_t flags) {
  if ((flags & BP_BACKEND_AUTHENTICATES) != 0) return "peers";
  return (flags & BP_BACKEND_ONE_PROCESS) != 0 ? "process" : "none";
}

std::string abi(uint32_t minor) { return fmt::format("{}.{}", BP_ABI_MAJOR, minor); }

const char* state_name(plugin::FoundBackend::State state) {
  using State = plugin::FoundBackend::State;
  return state == State::kAvailable ? "available" : state == State::kShadowed ? "shadowed" : "denied";
}

const char* state_name(plugin::FoundDirectory::State state) {
  using State = plugin::FoundDirectory::State;
  switch (state) {
    case State::kRead:
      return "read";
    case State::kMissing:
      return "missing";
    case State::kUnreadable:
      return "unreadable";
    default:
      return "repeated";
  }
}

Json describe(const plugin::FoundFile& file, const plugin::FoundBackend& backend) {
  Json item = {{"id", backend.note.id},
               {"version", backend.note.version},
               {"kinds", names(backend.note.kinds, kKinds)},
               {"flags", names(backend.note.flags, kFlags)},
               {"auth", auth(backend.note.flags)},
               {"ops", names(backend.note.ops, BP_OP_COUNT, op_name)},
               {"abi", abi(file.note.built_minor)},
               {"file", file.path},
               {"state", state_name(backend.state)}};
  if (!backend.reason.empty()) item["reason"] = backend.reason;
  return item;
}

Json describe(const Member& member) {
  uint64_t ops = 0;
  for (uint32_t i = 0; i < member.backend->capability_count; ++i) ops |= BP_BIT(member.backend->capabilities[i]->op);
  return {{"id", member.id},
          {"version", member.backend->version},
          {"kinds", names(member.backend->kinds, kKinds)},
          {"flags", names(member.backend->flags, kFlags)},
          {"auth", auth(member.backend->flags)},
          {"ops", names(ops, BP_OP_COUNT, op_name)},
          {"abi", abi(member.plugin == nullptr ? BP_ABI_MINOR : member.plugin->built_minor)},
          {"file", member.origin},
          {"state", "available"}};
}

Json describe(const bp_option& option) {
  Json item = {{"key", option.key}, {"type", kTypes[option.type]}, {"help", option.help}};
  const bool secret = (option.flags & BP_OPTION_SECRET) != 0;
  if ((option.flags & BP_OPTION_REQUIRED) != 0) item["required"] = true;
  if (option.default_value != nullptr && (option.flags & BP_OPTION_REQUIRED) == 0) {
    item["default"] = secret ? "***" : option.default_value;
  }
  if (option.choices != nullptr) item["choices"] = option.choices;
  if (option.min != 0 || option.max != 0) {
    item["min"] = option.min;
    item["max"] = option.max;
  }
  if (secret) item["secret"] = true;
  if ((option.flags & BP_OPTION_SAME_ON_ALL) != 0) item["same_on_all_ranks"] = true;
  return item;
}

// Text from the file system need not be UTF-8.
std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string list_json(Registry& registry) {
  const plugin::Scan scan = plugin::scan(plugin::search_path());
  Json directories = Json::array();
  for (const plugin::FoundDirectory& directory : scan.directories) {
    Json item = {
        {"path", directory.where.path}, {"origin", directory.where.origin}, {"state", state_name(directory.state)}};
    if (!directory.reason.empty()) item["reason"] = directory.reason;
    directories.push_back(std::move(item));
  }
  Json backends = Json::array();
  for (const Member* member : registry.members()) {
    const bool from_file = member->plugin != nullptr && member->origin.starts_with('/');
    if (!from_file) backends.push_back(describe(*member));
  }
  Json rejected = Json::array();
  for (const plugin::FoundFile& file : scan.files) {
    if (!file.rejection.empty()) rejected.push_back({{"file", file.path}, {"reason", file.rejection}});
    for (const plugin::FoundBackend& backend : file.backends) backends.push_back(describe(file, backend));
  }
  return dump({{"abi", abi(BP_ABI_MINOR)},
               {"directories", std::move(directories)},
               {"backends", std::move(backends)},
               {"rejected", std::move(rejected)}});
}

std::string info_json(const Member& member) {
  const bp_backend& backend = *member.backend;
  Json info = describe(member);
  info.erase("ops");
  info.erase("state");
  info["name"] = "BackendType." + member.name;
  info["summary"] = backend.summary == nullptr ? "" : backend.summary;
  info["vendor"] = member.plugin == nullptr ? "this program" : member.plugin->vendor;
  Json options = Json::array();
  for (uint32_t i = 0; i < backend.option_count; ++i) options.push_back(describe(*backend.options[i]));
  info["options"] = std::move(options);
  Json capabilities = Json::array();
  for (uint32_t i = 0; i < backend.capability_count; ++i) {
    const bp_capability& c = *backend.capabilities[i];
    capabilities.push_back({{"op", op_name(c.op)},
                            {"dtypes", names(c.dtypes, BP_DTYPE_COUNT, dtype_name)},
                            {"reduce_ops", names(c.reduce_ops, BP_REDUCE_OP_COUNT, reduce_op_name)},
                            {"memory", names(c.memory, BP_MEMORY_COUNT, [](uint32_t m) { return kMemories[m]; })}});
  }
  info["capabilities"] = std::move(capabilities);
  return dump(info);
}

}  // namespace backplane::core
