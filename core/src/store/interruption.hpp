// SPDX-License-Identifier: Apache-2.0
//
// The state behind Store::interrupt: a cause that ends all calls of one handle and of the views made from it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "deadline.hpp"
#include "error.hpp"

namespace backplane::core {

class Interruption {
 public:
  // `wake` makes every waiting call look at check() again. It is called without a lock of this object, and must take
  // the mutex that the waiting calls hold between check() and their wait, or a wake-up could be lost.
  explicit Interruption(std::function<void()> wake);

  // The state of a view: interrupted with this one, or alone.
  std::shared_ptr<Interruption> child();
  // The first cause stays.
  void raise(int32_t status, const std::string& why);
  // Throws the cause if there is one.
  void check() const;
  bool raised() const;

 private:
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  int32_t status_ = BP_OK;
  std::string why_;
  std::vector<std::weak_ptr<Interruption>> children_;
};

}  // namespace backplane::core
