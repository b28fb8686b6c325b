// SPDX-License-Identifier: Apache-2.0
//
// The registry of backends (torch.distributed.rpc.backend_registry).
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

// A backend in the registry. Valid as long as the process.
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

// The checked options of one backend. Copies share them.
class BackendOptions {
 public:
  explicit BackendOptions(bp_backend_options* options) : options_(options, bp_backend_options_release) {}

  // The value of an option as normalised text; "***" for secrets. Throws std::out_of_range for an unknown key.
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

// Returns true if a backend of this name is registered or in a plugin file. Ignores case. Runs no plugin code.
inline bool backend_registered(const std::string& name) { return bp_backend_registered(nullptr, name.c_str()) != 0; }

// The backend of a name (BackendType[name]). Loads its plugin if necessary. Status::kInvalid for an unknown name: the
// text lists the backends found, the directories searched and the reasons for rejected files, and suggests the nearest
// name.
inline BackendType backend_type(const std::string& name) {
  const bp_backend_type* type = nullptr;
  detail::call(bp_backend_lookup, static_cast<bp_registry*>(nullptr), name.c_str(), &type);
  return BackendType(type);
}

// Adds a backend of this program. `backend` must stay alive as long as the process. Status::kInvalid "RPC backend X:
// already registered" if there is one of that name.
inline BackendType register_backend(const bp_backend& backend) {
  const bp_backend_type* type = nullptr;
  detail::call(bp_register_backend, static_cast<bp_registry*>(nullptr), &backend, &type);
  return BackendType(type);
}

// A backend as a pair of functions of this program. The other members are those of bp_backend.
struct BackendHandlers {
  // Makes the options that `init` gets of the checked keywords, one for each declared option, with defaults filled in.
  // Empty: `init` gets the keywords themselves.
  std::function<std::any(Timeout rpc_timeout, const std::string& init_method, const Keywords& keywords)>
      construct_options;
  // Creates this rank's agent, of the kind in init.kind, and fills in *agent (backplane/abi/plugin.h). An exception
  // fails the initialisation.
  std::function<void(const bp_init& init, const std::any& options, bp_agent* agent)> init;
  std::vector<bp_option> options = {};
  std::vector<bp_capability> capabilities = {};
  uint32_t flags = 0;
  uint32_t kinds = BP_KIND_PROCESS_GROUP;  // kinds of agents that `init` creates: this, BP_KIND_RPC, or both
};

namespace detail {

// The descriptor of a pair of handlers. Must outlive the registry, and is never freed.
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

// Adds a backend of this program (torch.distributed.rpc's register_backend). `name` matches [a-z0-9_-]{1,32}. The
// handlers stay alive as long as the process. Status::kInvalid if there is a backend of that name.
inline BackendType register_backend(const std::string& name, BackendHandlers handlers) {
  auto registered = std::make_unique<detail::RegisteredHandlers>(name, std::move(handlers));
  const BackendType type = register_backend(registered->backend);
  registered.release();  // NOLINT(bugprone-unused-return-value): the registry refers to it as long as the process lives
  return type;
}

// Runs the options handler of a backend: checks keywords against its schema and fills in defaults. Status::kInvalid
// names the keyword that is wrong.
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

// Runs the init handler of a backend: creates this rank's part of a process group. `options` must come from the same
// backend. Blocks until all ranks have called it, at most `timeout`.
inline ProcessGroup init_backend(BackendType backend, const Store& store, const std::string& name, int rank,
                                 int world_size, const BackendOptions& options, Timeout timeout = kDefaultTimeout) {
  bp_group* group = nullptr;
  detail::call(bp_init_backend, backend.get(), store.get(), name.c_str(), rank, world_size, options.get(),
               timeout.count(), &group);
  return ProcessGroup(group);
}

// Searches the plugin directories again, and forgets earlier rejections.
inline void rescan() { bp_registry_rescan(nullptr); }

}  // namespace backplane
