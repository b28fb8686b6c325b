// SPDX-License-Identifier: Apache-2.0
//
// What is behind the handles of the C API.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backplane/backplane.h"
#include "group/group.hpp"
#include "group/services.hpp"
#include "handle.hpp"
#include "interrupt.hpp"
#include "registry/registry.hpp"
#include "rendezvous/rendezvous.hpp"

struct bp_store : backplane::core::Handle<bp_store> {
  std::shared_ptr<backplane::core::Store> store;
  // How often a rank has made a group of a name over this handle: each time gets keys of its own.
  std::mutex mutex;
  std::map<std::pair<std::string, int32_t>, int> generations;
};

struct bp_store_server : backplane::core::Handle<bp_store_server> {
  std::unique_ptr<backplane::core::TcpStoreServer> server;
  std::string address;
};

struct bp_registry : backplane::core::Handle<bp_registry> {
  backplane::core::Registry* registry;
  std::unique_ptr<backplane::core::Registry> own;  // empty for the default one
};

// A member is its own handle: bp_backend_type is never defined.
struct bp_backend_options : backplane::core::Handle<bp_backend_options> {
  std::shared_ptr<const backplane::core::BackendOptions> options;
  std::string init_method;  // where workers of these options meet
};

struct bp_group : backplane::core::Handle<bp_group> {
  std::shared_ptr<backplane::core::Group> group;
  std::string name;
  std::string backends[BP_MEMORY_COUNT];
};

struct bp_request : backplane::core::Handle<bp_request> {
  std::shared_ptr<backplane::core::Request> request;
};

// A message that a probe took.
struct bp_message : backplane::core::Handle<bp_message> {
  std::shared_ptr<backplane::core::Group> group;
  bp_message* message;  // the backend's
  bp_result found;      // its source, size and tag
};

struct bp_memory : backplane::core::Handle<bp_memory> {
  std::unique_ptr<backplane::core::Memory> memory;
};

struct bp_objects : backplane::core::Handle<bp_objects> {
  std::vector<std::string> objects;
};

namespace backplane::core {

// A function of the API: during `body`, waits ask the program's interruption hook.
template <typename Body>
int32_t api_call(bp_error* err, Body&& body) noexcept {
  const Interruptible interruptible;
  return guarded(err, std::forward<Body>(body));
}

// Fills in bp_error.group.
void name_group(bp_error* err, const std::string& name);

// The same for a function of a group, whose name goes into *err.
template <typename Body>
int32_t group_call(const bp_group* group, bp_error* err, Body&& body) noexcept {
  const int32_t status = api_call(err, std::forward<Body>(body));
  if (status != BP_OK && err != nullptr && is_live(group)) name_group(err, group->name);
  return status;
}

inline Registry& registry_of(bp_registry* handle) {
  return handle == nullptr ? default_registry() : *live(handle, "registry").registry;
}
inline const Member& member_of(const bp_backend_type* type) {
  return reinterpret_cast<const Member&>(required(type, "type"));
}
// A new handle of a group.
bp_group* make_handle(const std::shared_ptr<Group>& group);
// The group of a handle; BP_INVALID if it is NULL or was released.
Group& group_of(const bp_group* handle);
// A NUL-terminated copy for bp_free.
char* copy_text(const std::string& text);

}  // namespace backplane::core
