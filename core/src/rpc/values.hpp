// SPDX-License-Identifier: Apache-2.0
//
// The values that this worker owns, and who holds a claim (a fork) on each of them: torch's RRef protocol. A value
// lives until its last fork is dropped. All messages about forks may come twice and in any order: a fork is given only
// with the word of somebody who holds one, so that the value is there; dropping it again does nothing; and a drop that
// overtakes the making of its fork is remembered. Whoever takes a value out of here destroys it, which is the program's
// code, where that may run.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "deadline.hpp"
#include "error.hpp"
#include "rpc/parcel.hpp"
#include "rpc/recent.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

class Values {
 public:
  // A value that is there, or (NULL) why it will not be.
  using Ready = std::function<void(const std::shared_ptr<Value>& value, const Error* error)>;

  // A value that `function` will make, with its first fork. False if that has been dropped already. BP_INVALID if there
  // is such a value.
  bool create(const Id& value, const Id& fork, int32_t holder, const std::string& function);
  void set(const Id& value, std::shared_ptr<Value> made);
  void set(const Id& value, const Error& failure);
  // BP_INVALID if there is no such value. Nothing if the fork has been dropped already.
  void fork(const Id& value, const Id& fork, int32_t holder);
  // What goes with its last fork; who waits for it is told.
  std::shared_ptr<Value> drop(const Id& value, const Id& fork);
  std::vector<std::shared_ptr<Value>> drop_all_of(int32_t holder);

  // Calls `ready` once the value is there; at once, if it is. `asker` and `call` are who waits for it.
  void when_ready(const Id& value, Ready ready, int32_t asker = -1, uint64_t call = 0);
  // That one waits no more, and is not called. False if it did not wait.
  bool stop_waiting(const Id& value, int32_t asker, uint64_t call);
  // Waits for it. Throws its failure, BP_TIMEOUT, or BP_CANCELLED once closed.
  std::shared_ptr<Value> wait(const Id& value, Deadline deadline);

  struct Claim {
    std::string function;
    Id value;
    std::vector<int32_t> holders;  // one per fork
  };
  std::vector<Claim> claims() const;
  size_t size() const;
  // Takes all, and refuses more; who waits is told.
  std::vector<std::shared_ptr<Value>> close(const Error& why);

 private:
  struct Waiting {
    Ready ready;
    int32_t asker;
    uint64_t call;
  };
  struct Owned {
    std::string function;
    std::shared_ptr<Value> value;
    std::optional<Error> failure;
    std::map<Id, int32_t> forks;  // to their holders
    std::vector<Waiting> waiting;
    bool ready() const { return value != nullptr || failure.has_value(); }
  };
  using Table = std::map<Id, Owned>;

  // Takes the value out of an entry that goes; with mutex_ held.
  static void take_out(Owned* owned, std::vector<std::shared_ptr<Value>>* gone, std::vector<Waiting>* waiting);
  static void tell_gone(const std::vector<Waiting>& waiting, const Error& why);
  void settle(const Id& value, std::shared_ptr<Value> made, const std::optional<Error>& failure);
  Owned& find(const Id& value);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Table values_;
  Recent<Id, 1 << 16> dropped_early_;
  std::optional<Error> closed_;
};

}  // namespace backplane::core::rpc
