// SPDX-License-Identifier: Apache-2.0
//
// What is to be said to other processes when this one ends by exit or by returning from main while it still has groups:
// that it left in peace. Whoever is killed, aborts, calls _exit or becomes another program by exec says nothing, and so
// counts as lost.
#pragma once

#include <functional>

#include "deadline.hpp"

namespace backplane::core {

class ExitHandler {
 public:
  enum class Turn { kClients, kServers };  // the clients' first, since their servers may be in this process

  // `part` is called at most once, by the thread that ends the process, unless this object is destroyed before. It must
  // return soon after the deadline and not throw. The first of these objects makes the process call them at its end;
  // nothing happens when the library is loaded. In a child made by fork nothing is called.
  ExitHandler(Turn turn, std::function<void(Deadline)> part);
  // Waits for a call in progress.
  ~ExitHandler();
  ExitHandler(const ExitHandler&) = delete;
  ExitHandler& operator=(const ExitHandler&) = delete;

 private:
  friend class ExitHandlers;

  const Turn turn_;
  const std::function<void(Deadline)> part_;
};

}  // namespace backplane::core
