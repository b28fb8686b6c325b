// SPDX-License-Identifier: Apache-2.0
//
// Functions that run when this process ends by exit or by returning from main. They tell other processes that it left
// in an orderly way. A process that is killed, aborts, or calls _exit or exec runs none and counts as lost.
#pragma once

#include <functional>

#include "deadline.hpp"

namespace backplane::core {

class ExitHandler {
 public:
  enum class Order { kClient, kServer };  // clients first: their server may be in this process

  // `run` is called at most once, by the thread that ends the process, unless this object is destroyed before. It must
  // return soon after the deadline and not throw. A child made by fork calls nothing.
  ExitHandler(Order order, std::function<void(Deadline)> run);
  // Waits for a running call.
  ~ExitHandler();
  ExitHandler(const ExitHandler&) = delete;
  ExitHandler& operator=(const ExitHandler&) = delete;

 private:
  friend class ExitHandlers;

  const Order order_;
  const std::function<void(Deadline)> run_;
};

}  // namespace backplane::core
