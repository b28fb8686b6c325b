// SPDX-License-Identifier: Apache-2.0
//
// The registry of backends, torch.distributed.rpc's BackendType: members by name, each a pair of handlers. Built-in
// backends, those of the program and those of plugin files come through the same door. An ordinary object; the one that
// belongs to the process is an instance of it.
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

// A member. Its address stays the same for the life of the registry, also when more members are added.
struct Member {
  std::string id;      // "gloo"
  std::string name;    // "GLOO", as BackendType shows it
  std::string origin;  // the plugin's file, "built in", or "registered by this program"
  const bp_backend* backend = nullptr;
  const bp_plugin* plugin = nullptr;  // NULL if registered by the program
};

// What an options handler made: the checked values and, if the backend has a handler, its own object.
class BackendOptions {
 public:
  BackendOptions(const Member& member, KeyValues values, int64_t rpc_timeout_ns, const std::string& init_method);
  ~BackendOptions();
  BackendOptions(const BackendOptions&) = delete;
  BackendOptions& operator=(const BackendOptions&) = delete;

  const Member& member() const { return member_; }
  const KeyValues& values() const { return values_; }
  const bp_options* native() const { return native_; }
  int64_t rpc_timeout_ns() const { return rpc_timeout_ns_; }
  // One line of the options on which all ranks must agree.
  std::string fingerprint() const;

 private:
  const Member& member_;
  KeyValues values_;
  const int64_t rpc_timeout_ns_;
  bp_options* native_ = nullptr;
};

class Registry {
 public:
  Registry();

  // Is this a backend that lookup would find, as far as can be told without running its code?
  bool registered(std::string_view name);
  // BP_INVALID "RPC backend X: already registered".
  const Member& register_backend(const bp_backend& backend);
  // Loads the plugin if need be. Throws an error that says what was found and where.
  const Member& lookup(std::string_view name);
  // All ids that could be looked up now, sorted.
  std::vector<std::string> known();
  std::vector<const Member*> members() const;

 private:
  // The member of this id, and whether it is new. The first to come stays.
  std::pair<const Member*, bool> add(const bp_backend& backend, const bp_plugin* plugin, const std::string& origin);
  const Member* member(const std::string& id) const;

  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Member>> members_;
};

// The registry of the process.
Registry& default_registry();

// Is the backend viable here? Throws core::Error with the reason if not. What it remarks about this machine, if
// anything.
std::string probe(const Member& member);

// BP_UNSUPPORTED if this process has a secret of its job (store/secret.hpp) and the backend could not tell its peers
// from strangers.
void check_security(const Member& member);

// What a user gave, completed and checked by the backend.
std::shared_ptr<const BackendOptions> make_options(const Member& member, const KeyValues& given);

}  // namespace backplane::core
