// SPDX-License-Identifier: Apache-2.0
#include "store/interruption.hpp"

#include <utility>

namespace backplane::core {

Interruption::Interruption(std::function<void()> wake) : wake_(std::move(wake)) {}

std::shared_ptr<Interruption> Interruption::child() {
  auto made = std::make_shared<Interruption>(wake_);
  const std::lock_guard lock(mutex_);
  made->status_ = status_;
  made->why_ = why_;
  std::erase_if(children_, [](const std::weak_ptr<Interruption>& one) { return one.expired(); });
  children_.push_back(made);
  return made;
}

void Interruption::raise(int32_t status, const std::string& why) {
  std::vector<std::weak_ptr<Interruption>> children;
  {
    const std::lock_guard lock(mutex_);
    if (status_ != BP_OK) return;
    status_ = status;
    why_ = why;
    children.swap(children_);
  }
  wake_();
  for (const auto& one : children) {
    if (const auto child = one.lock()) child->raise(status, why);
  }
}

void Interruption::check() const {
  const std::lock_guard lock(mutex_);
  if (status_ != BP_OK) throw Error(status_, why_);
}

bool Interruption::raised() const {
  const std::lock_guard lock(mutex_);
  return status_ != BP_OK;
}

}  // namespace backplane::core
