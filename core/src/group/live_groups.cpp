// SPDX-License-Identifier: Apache-2.0
#include "group/live_groups.hpp"

#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "group/group.hpp"
#include "liveness/exit_handler.hpp"
#include "process.hpp"

namespace backplane::core {
namespace {

struct LiveGroups {
  void end(const Deadline& deadline) {
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex);
      for (const auto& [address, weak] : groups) {
        if (auto group = weak.lock()) tasks.push_back([group, deadline] { group->end_at_exit(deadline); });
      }
    }
    run_tasks_until(deadline, std::move(tasks));
  }

  std::mutex mutex;
  std::map<const Group*, std::weak_ptr<Group>> groups;  // guarded by mutex
  const ExitHandler exit_handler{ExitHandler::Order::kGroups, [this](const Deadline& deadline) { end(deadline); }};
};

LiveGroups& live_groups() {
  static constinit PerProcess<LiveGroups> instance;
  return *instance;
}

}  // namespace

void add_live_group(const std::shared_ptr<Group>& group) {
  const std::lock_guard lock(live_groups().mutex);
  live_groups().groups.emplace(group.get(), group);
}

void remove_live_group(const Group* group) {
  const std::lock_guard lock(live_groups().mutex);
  live_groups().groups.erase(group);
}

}  // namespace backplane::core
