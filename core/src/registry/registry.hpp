// SPDX-License-Identifier: Apache-2.0
//
// The registry of backends by name, torch.distributed.rpc's BackendType. It holds built-in backends, those that the
// program registers, and those of plugin files. An ordinary object; default_registry() is one instance.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "options/option_value.hpp"
#include "plugin/discovery.hpp"

namespace backplane::core {

// A registered backend. Its address is valid for the life of the registry.
struct Member {
  std::string id;      // "gloo"
  std::string name;    // "GLOO", as BackendType shows it
  std::string origin;  // the plugin's file, "built in", or "registered by this program"
  const bp_backend* backend = nullptr;
  const bp_plugin* plugin = nullptr;  // NULL if registered by the program
  // Of a composite (compose()): the backends inside hosts and between hosts. Empty otherwise.
  std::vector<const Member*> parts = {};
};

// Checked option values and, if the backend has a handler for them, the object that it made.
class BackendOptions {
 public:
  BackendOptions(const Member& member, KeyValues values, int64_t rpc_timeout_ns, const std::string& init_method);
  BackendOptions(const Member& composite, std::vector<std::shared_ptr<const BackendOptions>> parts);
  ~BackendOptions();
  BackendOptions(const BackendOptions&) = delete;
  BackendOptions& operator=(const BackendOptions&) = delete;

  const Member& member() const { return member_; }
  const KeyValues& values() const { return values_; }
  const bp_options* native() const { return native_; }
  int64_t rpc_timeout_ns() const { return rpc_timeout_ns_; }
  // Of a composite: those of its parts.
  const std::vector<std::shared_ptr<const BackendOptions>>& parts() const { return parts_; }
  // The options on which all ranks must agree, as one line.
  std::string fingerprint() const;

 private:
  const Member& member_;
  KeyValues values_;
  const int64_t rpc_timeout_ns_;
  bp_options* native_ = nullptr;
  std::vector<std::shared_ptr<const BackendOptions>> parts_;
};

struct CompositeMember;

class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Whether lookup would find this backend, judged without running its code.
  bool registered(std::string_view name);
  // BP_INVALID "RPC backend X: already registered".
  const Member& register_backend(const bp_backend& backend);
  // Loads the plugin if necessary. BP_INVALID lists what is available and where it was searched for; BP_UNSUPPORTED
  // says why the backend must not or cannot be used.
  const Member& lookup(std::string_view name) { return lookup(name, "backend", ~UINT32_C(0)); }
  // The same for a layer of BACKPLANE_LAYERS.
  const Member& lookup_layer(std::string_view name) { return lookup(name, "layer", BP_KIND_LAYER); }
  // The composite of a backend for ranks on one host and one for ranks on different hosts (group/composite.hpp). It is
  // no member of the lists below. BP_INVALID or BP_UNSUPPORTED if they cannot be composed.
  const Member& compose(const Member& inside, const Member& between);
  // The ids of all backends of these kinds (a mask of BP_KIND_...) that lookup would find now, sorted.
  std::vector<std::string> known(uint32_t kinds = ~UINT32_C(0));
  std::vector<const Member*> members() const;

 private:
  const Member& lookup(std::string_view name, const char* what, uint32_t kinds);
  // The member of this id, and whether it is new. An existing one stays.
  std::pair<const Member*, bool> add(const bp_backend& backend, const bp_plugin* plugin, const std::string& origin);
  const Member* member(const std::string& id) const;

  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Member>> members_;
  std::map<std::string, std::unique_ptr<CompositeMember>> composites_;
};

// The registry of the process.
Registry& default_registry();

// Checks that the backend works on this machine and returns its remarks, if any. Throws core::Error with the reason if
// it does not.
std::string probe(const Member& member);

// BP_UNSUPPORTED if the job has a secret (security/secret.hpp) and the backend cannot authenticate its peers.
void check_security(const Member& member);

// Checks the given options and adds the defaults.
std::shared_ptr<const BackendOptions> make_options(const Member& member, const KeyValues& given);
// The same for a composite: the options of its parts.
std::shared_ptr<const BackendOptions> make_composite_options(const Member& composite, const KeyValues& inside,
                                                             const KeyValues& between);

}  // namespace backplane::core
