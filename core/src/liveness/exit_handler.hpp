// SPDX-License-Identifier: Apache-2.0
//
// Functions that run when this process ends by exit or by returning from main. They end what the program left open, so
// that other processes get the messages sent to them and are told that this one left in an orderly way. A process that
// is killed, aborts, or calls _exit, quick_exit or exec runs none and counts as lost. A child made by fork runs its
// own, not those of its parent.
#pragma once

#include <functional>
#include <vector>

#include "deadline.hpp"

namespace backplane::core {

class ExitHandler {
 public:
  // Groups send through the store's clients until they have ended, and a client's server may be in this process.
  enum class Order { kWorkers, kGroups, kLibraries, kClients, kServers };

  // `run` is called at most once, by the thread that ends the process, unless this object is destroyed before. It must
  // return soon after the deadline and not throw.
  ExitHandler(Order order, std::function<void(const Deadline&)> run);
  // Waits for a running call.
  ~ExitHandler();
  ExitHandler(const ExitHandler&) = delete;
  ExitHandler& operator=(const ExitHandler&) = delete;

  // For a call of the API that failed. If another thread ends the process, waits until the time for groups is over: the
  // call may have failed because its group was ended, and its error could end the program in another way.
  static void hold_failed_call() noexcept;
  // Makes the handlers run before the destructors of libraries that are loaded now. Call after loading one.
  static void run_before_loaded_libraries();

 private:
  friend class ExitHandlers;

  const Order order_;
  const std::function<void(const Deadline&)> run_;
};

// Runs tasks at exit on threads, several at a time. Returns when all have returned, at the deadline at the latest; the
// others then keep their threads, until the process ends. Tasks must not throw.
void run_tasks_until(const Deadline& deadline, std::vector<std::function<void()>> tasks);

}  // namespace backplane::core
