// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.hpp"
#include "plugin/loader.hpp"
#include "plugin/plugin_file.hpp"
#include "reduce/combine.hpp"
#include "registry/report.hpp"
#include "registry/selection.hpp"
#include "text.hpp"

using namespace backplane::core;  // NOLINT: the C API is outside the namespace

namespace {

std::string file_info(const std::string& path) {
  const plugin::Note note = plugin::read_plugin_file(path, plugin::search_path().policy.allow_unsafe);
  const bp_plugin* const loaded = plugin::load(path, note);
  std::string text;
  for (uint32_t i = 0; i < loaded->backend_count; ++i) {
    const bp_backend* const backend = loaded->backends[i];
    text += (i == 0 ? "" : ",\n") + info_json({backend->id, upper(backend->id), path, backend, loaded});
  }
  return "[" + text + "]";
}

const bp_backend_type* handle(const Member& member) { return reinterpret_cast<const bp_backend_type*>(&member); }

}  // namespace

extern "C" {

const char* bp_version(void) { return BACKPLANE_VERSION; }
const char* bp_dtype_name(uint32_t dtype) { return dtype_name(dtype); }
const char* bp_reduce_op_name(uint32_t reduce_op) { return reduce_op_name(reduce_op); }
const char* bp_op_name(uint32_t kind) { return op_name(kind); }
const char* bp_status_name(int32_t status) { return status_name(status); }

bp_registry* bp_registry_default(void) {
  static auto* const instance = new_handle<bp_registry>(&default_registry(), nullptr);
  return instance;
}
int32_t bp_registry_create(bp_registry** registry, bp_error* err) {
  return guarded(err, [=] {
    store_result(registry, "registry", [] {
      auto own = std::make_unique<Registry>();
      Registry* const raw = own.get();
      return new_handle<bp_registry>(raw, std::move(own));
    });
  });
}
void bp_registry_release(bp_registry* registry) {
  if (is_live(registry) && registry->own) release(registry);
}

int32_t bp_backend_registered(bp_registry* registry, const char* name) {
  int32_t found = 0;
  guarded(nullptr, [=, &found] { found = registry_of(registry).registered(&required(name, "name")) ? 1 : 0; });
  return found;
}
int32_t bp_register_backend(bp_registry* registry, const bp_backend* backend, const bp_backend_type** type,
                            bp_error* err) {
  return guarded(err, [=] {
    const Member& member = registry_of(registry).register_backend(required(backend, "backend"));
    if (type != nullptr) *type = handle(member);
  });
}
int32_t bp_backend_lookup(bp_registry* registry, const char* name, const bp_backend_type** type, bp_error* err) {
  return guarded(err, [=] {
    store_result(type, "type", [=] { return handle(registry_of(registry).lookup(&required(name, "name"))); });
  });
}
const char* bp_backend_type_name(const bp_backend_type* type) {
  return type == nullptr ? nullptr : member_of(type).name.c_str();
}
const bp_backend* bp_backend_type_descriptor(const bp_backend_type* type) {
  return type == nullptr ? nullptr : member_of(type).backend;
}

int32_t bp_construct_backend_options(const bp_backend_type* type, int64_t rpc_timeout_ns, const char* init_method,
                                     const bp_key_value* values, uint64_t count, bp_backend_options** options,
                                     bp_error* err) {
  return guarded(err, [=] {
    required(options, "options");
    const Member& member = member_of(type);
    KeyValues given;
    list_of(values, count, "values");
    for (uint64_t i = 0; i < count; ++i) {
      if (values[i].key == nullptr || values[i].value == nullptr)
        fail(BP_INVALID, "option {} has a NULL key or value", i);
      given.emplace_back(values[i].key, values[i].value);
    }
    const std::string where = init_method == nullptr ? "env://" : init_method;
    *options = new_handle<bp_backend_options>(
        std::make_shared<BackendOptions>(member, complete_options(*member.backend, given),
                                         timeout_or(rpc_timeout_ns, BP_DEFAULT_RPC_TIMEOUT_NS), where),
        where);
  });
}
const char* bp_backend_options_get(const bp_backend_options* options, const char* key) {
  if (!is_live(options) || key == nullptr) return nullptr;
  const KeyValues& values = options->options->values();
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].first != key) continue;
    const bool secret = (options->options->member().backend->options[i]->flags & BP_OPTION_SECRET) != 0;
    return secret ? "***" : values[i].second.c_str();
  }
  return nullptr;
}
void bp_backend_options_release(bp_backend_options* options) { release(options); }

void bp_registry_rescan(bp_registry*) {}  // lookups cache nothing

int32_t bp_registry_list(bp_registry* registry, char** json, bp_error* err) {
  return guarded(err, [=] { store_result(json, "json", [=] { return copy_text(list_json(registry_of(registry))); }); });
}
int32_t bp_registry_info(bp_registry* registry, const char* name, char** json, bp_error* err) {
  return guarded(err, [=] {
    store_result(json, "json",
                 [=] { return copy_text(info_json(registry_of(registry).lookup(&required(name, "name")))); });
  });
}
int32_t bp_registry_probe(bp_registry* registry, const char* name, bp_error* err) {
  return guarded(err, [=] { probe(registry_of(registry).lookup(&required(name, "name"))); });
}
int32_t bp_plugin_file_info(const char* path, char** json, bp_error* err) {
  return guarded(err,
                 [=] { store_result(json, "json", [=] { return copy_text(file_info(&required(path, "path"))); }); });
}

}  // extern "C"
