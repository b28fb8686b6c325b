// SPDX-License-Identifier: Apache-2.0
//
// The objects behind the handles of the C API.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backplane/backplane.h"
#include "group/group.hpp"
#include "group/request.hpp"
#include "group/services.hpp"
#include "handle.hpp"
#include "interrupt.hpp"
#include "liveness/exit_handler.hpp"
#include "registry/registry.hpp"
#include "rendezvous/rendezvous.hpp"

struct bp_store : backplane::core::Handle<bp_store> {
  std::shared_ptr<backplane::core::Store> store;
  // The number of groups by name and rank. Each group uses its own keys.
  std::mutex mutex;
  std::map<std::pair<std::string, int32_t>, int> generations;
};

struct bp_store_server : backplane::core::Handle<bp_store_server> {
  std::unique_ptr<backplane::core::TcpStoreServer> server;
  std::string address;
};

struct bp_registry : backplane::core::Handle<bp_registry, backplane::core::AfterFork::kUsable> {
  backplane::core::Registry* registry;
  std::unique_ptr<backplane::core::Registry> own;  // empty for the default one
};

// A member is its own handle: bp_backend_type is never defined.
struct bp_backend_options : backplane::core::Handle<bp_backend_options, backplane::core::AfterFork::kUsable> {
  std::shared_ptr<const backplane::core::BackendOptions> options;
  std::string init_method;  // of the workers with these options
};

struct bp_group : backplane::core::Handle<bp_group> {
  std::shared_ptr<backplane::core::Group> group;
  std::string name;
  std::string backends[BP_MEMORY_COUNT];
};

struct bp_request : backplane::core::Handle<bp_request> {
  std::shared_ptr<backplane::core::Request> request;
};

// A probed message.
struct bp_message : backplane::core::Handle<bp_message> {
  std::shared_ptr<backplane::core::Group> group;
  bp_message* message;  // the backend's
  bp_result found;      // its source, size and tag
};

struct bp_memory : backplane::core::Handle<bp_memory> {
  std::unique_ptr<backplane::core::Memory> memory;
};

struct bp_objects : backplane::core::Handle<bp_objects, backplane::core::AfterFork::kUsable> {
  std::vector<std::string> objects;
};

namespace backplane::core {

// A function of the API: waits in `body` call the program's interruption hook.
template <typename Body>
int32_t api_call(bp_error* err, Body&& body) noexcept {
  const Interruptible interruptible;
  const int32_t status = guarded(err, std::forward<Body>(body));
  if (status != BP_OK && !CallbackScope::active()) ExitHandler::hold_failed_call();
  return status;
}

// Fills in bp_error.group.
void name_group(bp_error* err, const std::string& name);

// A function of a group, whose name it puts into *err.
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
// Creates a handle of a group.
bp_group* make_handle(const std::shared_ptr<Group>& group);
// The group of a handle; BP_INVALID if it is NULL or was released.
Group& group_of(const bp_group* handle);
// A NUL-terminated copy for bp_free.
char* copy_text(const std::string& text);

}  // namespace backplane::core
