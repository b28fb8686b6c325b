// SPDX-License-Identifier: Apache-2.0
#include "capi/default_group.hpp"

#include <atomic>
#include <mutex>

#include "capi/handles.hpp"
#include "capi/job.hpp"
#include "process.hpp"
#include "registry/selection.hpp"

namespace backplane::core {
namespace {

struct Default {
  std::mutex init_mutex;  // held during creation
  std::mutex mutex;       // guards group
  std::shared_ptr<Group> group;
};

std::atomic<uint64_t> made_in = 0;  // the process whose default group exists; a child inherits it

Default& the_default() {
  static constinit PerProcess<Default> instance;
  return *instance;
}

// Whether the groups of the chosen backend are never the default. False for an invalid choice, which create_group
// reports.
bool is_local(const bp_group_config& config) {
  try {
    const SelectionPart first = parse_selection(selected_backend(config.backend)).front();
    if (first.name == "auto") return false;
    return (registry_of(config.registry).lookup(first.name).backend->flags & BP_BACKEND_LOCAL) != 0;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::shared_ptr<Group> init_default(const bp_group_config& config, bool wants_handle) {
  if (is_local(config)) {
    if (!wants_handle)
      fail(BP_INVALID, "a group of this backend cannot be the default group; use the group that is returned");
    return create_group(config);
  }
  const std::lock_guard once(the_default().init_mutex);
  if (default_group()) {
    fail(BP_INVALID, "trying to initialize the default process group twice; call destroy_process_group first");
  }
  auto group = create_group(config);
  group->state().add_handle();
  const std::lock_guard lock(the_default().mutex);
  the_default().group = group;
  made_in = ProcessMark::current().bits();
  return group;
}

std::shared_ptr<Group> default_group() {
  const std::lock_guard lock(the_default().mutex);
  return the_default().group;
}

void refuse_default(const char* why) {
  const ProcessMark process = ProcessMark::from(made_in);
  if (!process.is_valid() || process == ProcessMark::current()) throw Error(BP_INVALID, why);
  fail(BP_INVALID, "the default process group {}", inherited_text(process));
}

void destroy_default() {
  const auto group = default_group();
  if (!group) refuse_default("there is no default process group to destroy; call init_process_group first");
  end_group(group);
}

void end_group(const std::shared_ptr<Group>& group) {
  CallbackScope::refuse("end a group");
  if (group->state().ends_with_process()) return;
  bool was_default = false;
  {
    const std::lock_guard lock(the_default().mutex);
    was_default = the_default().group == group;
    if (was_default) {
      the_default().group.reset();
      made_in = 0;
    }
  }
  group->destroy();
  if (was_default) group->drop_handle();
}

}  // namespace backplane::core
