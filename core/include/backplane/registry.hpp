// SPDX-License-Identifier: Apache-2.0
//
// The registry of backends: torch.distributed.rpc.backend_registry for C++.
#pragma once

#include <any>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backplane/process_group.hpp"

namespace backplane {

// A member of the registry. Members held stay valid when others are added.
class BackendType {
 public:
  explicit BackendType(const bp_backend_type* type) : type_(type) {}

  std::string name() const { return bp_backend_type_name(type_); }  // "GLOO"
  std::string repr() const { return "BackendType." + name(); }      // "BackendType.GLOO"
  const bp_backend& descriptor() const { return *bp_backend_type_descriptor(type_); }
  const bp_backend_type* get() const { return type_; }
  bool operator==(const BackendType&) const = default;

 private:
  const bp_backend_type* type_;
};

// What an options handler made. Copies share it.
class BackendOptions {
 public:
  explicit BackendOptions(bp_backend_options* options) : options_(options, bp_backend_options_release) {}

  // The value as normalised text ("***" for secrets); throws std::out_of_range for an unknown key.
  std::string operator[](const std::string& key) const {
    const char* value = bp_backend_options_get(options_.get(), key.c_str());
    if (value == nullptr) throw std::out_of_range("there is no option '" + key + "'");
    return value;
  }
  const bp_backend_options* get() const { return options_.get(); }

 private:
  std::shared_ptr<bp_backend_options> options_;
};

using Keywords = std::map<std::string, std::string>;

// Is there a backend of this name (any case), registered or in a plugin file? Runs no plugin code.
inline bool backend_registered(const std::string& name) { return bp_backend_registered(nullptr, name.c_str()) != 0; }

// BackendType[name]. An unknown name's error lists what was found, where it was looked for and why files were rejected,
// and suggests the nearest name.
inline BackendType backend_type(const std::string& name) {
  const bp_backend_type* type = nullptr;
  detail::call(bp_backend_lookup, static_cast<bp_registry*>(nullptr), name.c_str(), &type);
  return BackendType(type);
}

// Adds a backend of this program; `backend` must live as long as the process. Throws "RPC backend X: already
// registered".
inline BackendType register_backend(const bp_backend& backend) {
  const bp_backend_type* type = nullptr;
  detail::call(bp_register_backend, static_cast<bp_registry*>(nullptr), &backend, &type);
  return BackendType(type);
}

// A backend written as a pair of functions of this program. The members beside the handlers are those of bp_backend.
struct BackendHandlers {
  // Digests the checked keywords (one per declared option, defaults filled in) into what `init` wants to see. May be
  // empty: then `init` gets the keywords.
  std::function<std::any(Timeout rpc_timeout, const std::string& init_method, const Keywords& keywords)>
      construct_options;
  // Makes this rank's agent, of the kind that init.kind says, for instance out of an sdk::ProcessGroup, and fills in
  // *agent (backplane/abi/plugin.h). Throws to fail.
  std::function<void(const bp_init& init, const std::any& options, bp_agent* agent)> init;
  std::vector<bp_option> options = {};
  std::vector<bp_capability> capabilities = {};
  uint32_t flags = 0;
  uint32_t kinds = BP_KIND_PROCESS_GROUP;  // of the agents that `init` makes: BP_KIND_RPC, or both
};

namespace detail {

// The descriptor of a pair of handlers. It must outlive its registry, so it is never freed.
struct RegisteredHandlers {
  RegisteredHandlers(std::string id, BackendHandlers given) : name(std::move(id)), handlers(std::move(given)) {
    for (bp_option& option : handlers.options) {
      option.struct_size = sizeof(bp_option);
      options.push_back(&option);
    }
    for (bp_capability& capability : handlers.capabilities) {
      capability.struct_size = sizeof(bp_capability);
      capabilities.push_back(&capability);
    }
    backend.struct_size = sizeof(bp_backend);
    backend.kinds = handlers.kinds;
    backend.flags = handlers.flags;
    backend.option_count = static_cast<uint32_t>(options.size());
    backend.id = name.c_str();
    backend.version = "";
    backend.summary = "a backend of this program";
    backend.options = options.data();
    backend.capabilities = capabilities.data();
    backend.capability_count = static_cast<uint32_t>(capabilities.size());
    backend.construct_options = construct;
    backend.destroy_options = destroy;
    backend.init = init;
  }

  static RegisteredHandlers& of(const bp_backend* backend) {
    return *const_cast<RegisteredHandlers*>(reinterpret_cast<const RegisteredHandlers*>(backend));
  }
  // An exception becomes a status here.
  template <typename Body>
  static int32_t guarded(bp_error* err, const Body& body) noexcept {
    try {
      body();
      return BP_OK;
    } catch (const Error& e) {
      return bp_error_set(err, static_cast<int32_t>(e.status()), e.native_code(), e.peer_rank(), e.what());
    } catch (const std::exception& e) {
      return bp_error_set(err, BP_INTERNAL, 0, -1, e.what());
    } catch (...) {
      return bp_error_set(err, BP_INTERNAL, 0, -1, "an exception of unknown type");
    }
  }
  static int32_t construct(const bp_backend* self, const bp_options_request* request, bp_options** out, bp_error* err) {
    return guarded(err, [self, request, out] {
      Keywords keywords;
      for (uint32_t i = 0; i < request->value_count; ++i) keywords[request->values[i].key] = request->values[i].value;
      const auto& handler = of(self).handlers.construct_options;
      auto made = std::make_unique<std::any>(
          handler ? handler(Timeout(request->rpc_timeout_ns), request->init_method, keywords) : std::any(keywords));
      *out = reinterpret_cast<bp_options*>(made.release());
    });
  }
  static void destroy(const bp_backend*, bp_options* options) { delete reinterpret_cast<std::any*>(options); }
  static int32_t init(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
    return guarded(err, [self, init, agent] {
      of(self).handlers.init(*init, *reinterpret_cast<const std::any*>(init->options), agent);
    });
  }

  bp_backend backend = {};  // first, so that a pointer to it is a pointer to this
  const std::string name;
  BackendHandlers handlers;
  std::vector<const bp_option*> options;
  std::vector<const bp_capability*> capabilities;
};

}  // namespace detail

// torch.distributed.rpc's register_backend(name, options handler, init handler). `name` is [a-z0-9_-]{1,32}.
inline BackendType register_backend(const std::string& name, BackendHandlers handlers) {
  auto registered = std::make_unique<detail::RegisteredHandlers>(name, std::move(handlers));
  const BackendType type = register_backend(registered->backend);
  registered.release();  // NOLINT(bugprone-unused-return-value): the registry refers to it as long as the process lives
  return type;
}

// The options handler of a backend: checks keywords against its schema, fills in defaults.
inline BackendOptions construct_rpc_backend_options(BackendType backend,
                                                    Timeout rpc_timeout = Timeout(BP_DEFAULT_RPC_TIMEOUT_NS),
                                                    const std::string& init_method = "env://",
                                                    const Keywords& keywords = {}) {
  std::vector<bp_key_value> values;
  for (const auto& [key, value] : keywords) values.push_back({key.c_str(), value.c_str()});
  bp_backend_options* options = nullptr;
  detail::call(bp_construct_backend_options, backend.get(), rpc_timeout.count(), init_method.c_str(),
               static_cast<const bp_key_value*>(values.data()), values.size(), &options);
  return BackendOptions(options);
}

// The init handler of a backend. The options must be of the same backend.
inline ProcessGroup init_backend(BackendType backend, const Store& store, const std::string& name, int rank,
                                 int world_size, const BackendOptions& options, Timeout timeout = kDefaultTimeout) {
  bp_group* group = nullptr;
  detail::call(bp_init_backend, backend.get(), store.get(), name.c_str(), rank, world_size, options.get(),
               timeout.count(), &group);
  return ProcessGroup(group);
}

// Looks at the plugin directories again.
inline void rescan() { bp_registry_rescan(nullptr); }

}  // namespace backplane
