// SPDX-License-Identifier: Apache-2.0
//
// The state of Store::interrupt: a cause that ends all calls of a handle and of its views.
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
  // `wake` makes every waiting call repeat check(). It is called without a lock of this object and must lock the mutex
  // that the waiting calls hold between check() and their wait; otherwise a wake-up could be lost.
  explicit Interruption(std::function<void()> wake);

  // The state of a view: interrupted with this one or by itself.
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
