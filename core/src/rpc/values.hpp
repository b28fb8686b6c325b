// SPDX-License-Identifier: Apache-2.0
//
// The values that this worker owns and the forks (wire.hpp) on each: the owner's side of torch's RRef protocol. A value
// lives until its last fork is dropped. Messages about forks may arrive twice and in any order: only a holder of a fork
// registers another one, so the value exists; a second drop has no effect; a drop that overtakes its registration is
// remembered. Values are returned, not destroyed: their destructors are code of the program.
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
#include "rpc/payload.hpp"
#include "rpc/recent_set.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

class Values {
 public:
  // Gets the value, or (NULL) the reason why there is none.
  using Ready = std::function<void(const std::shared_ptr<Value>& value, const Error* error)>;

  // Enters a value that `function` will make, with its first fork. False if that has been dropped already. Throws
  // BP_INVALID if the id is in use.
  bool create(const Id& value, const Id& fork, int32_t holder, const std::string& function);
  void set(const Id& value, std::shared_ptr<Value> made);
  void set(const Id& value, const Error& failure);
  // Registers a fork, unless it has been dropped already. Throws BP_INVALID if there is no such value.
  void fork(const Id& value, const Id& fork, int32_t holder);
  // Releases a fork. Returns the value if that was its last one; its waiters get an error.
  std::shared_ptr<Value> drop(const Id& value, const Id& fork);
  std::vector<std::shared_ptr<Value>> drop_all_of(int32_t holder);

  // Calls `ready` once the value exists; immediately, if it does. `asker` and `call` identify the waiter.
  void when_ready(const Id& value, Ready ready, int32_t asker = -1, uint64_t call = 0);
  // Removes a waiter without calling it. False if there is none.
  bool stop_waiting(const Id& value, int32_t asker, uint64_t call);
  // Blocks until the value exists. Throws its failure, BP_TIMEOUT, or the reason of close.
  std::shared_ptr<Value> wait(const Id& value, Deadline deadline);

  struct Claim {
    std::string function;
    Id value;
    std::vector<int32_t> holders;  // one per fork
  };
  std::vector<Claim> claims() const;
  size_t size() const;
  // Removes all values and refuses more. Waiters get `why`.
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

  // Moves value and waiters out of an entry that is about to be erased. Requires mutex_.
  static void take_out(Owned* owned, std::vector<std::shared_ptr<Value>>* gone, std::vector<Waiting>* waiting);
  static void fail_waiters(const std::vector<Waiting>& waiting, const Error& why);
  void settle(const Id& value, std::shared_ptr<Value> made, const std::optional<Error>& failure);
  Owned& find(const Id& value);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Table values_;
  RecentSet<Id, 1 << 16> dropped_early_;
  std::optional<Error> closed_;
};

}  // namespace backplane::core::rpc
