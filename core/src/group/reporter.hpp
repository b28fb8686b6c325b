// SPDX-License-Identifier: Apache-2.0
//
// Queries between the ranks of a job about their groups, for the diagnosis of operations that do not end. They go
// through the store. A thread of the core, one per rank and job, waits for queries and answers them, so that a rank
// answers while its program is busy.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/store.hpp"

namespace backplane::core {

inline constexpr int64_t kStoreTimeNs = INT64_C(5) * 1000000000;  // for one store call

inline constexpr const char* kFirstGroup = "0";  // key of a job's first group

// Sent by one rank to all ranks of a group.
struct Query {
  enum class Kind : uint32_t {
    kPosition,  // the answer is the position relative to collective `seq`
    kBroken,    // reports that the group is broken, with `status`, `failed_rank` and `text`; no answer
    kTrace      // the answer is the flight recorders of the group and of the groups made from it
  };
  Kind kind = Kind::kPosition;
  std::string group;  // its key
  int32_t rank = -1;  // the sender, in that group
  uint64_t seq = 0;
  int32_t status = 0;
  int32_t failed_rank = -1;
  std::string text;
};

class Reporter {
 public:
  // A group's functions, called on the reporter's thread.
  struct Listener {
    std::string group;
    int32_t rank = -1;
    std::function<std::string(const Query&)> answer;  // empty: no answer
    std::function<void()> tick;                       // about once a second
  };
  using ListenerId = std::list<Listener>::iterator;

  // `store`: a view of the store of the job's first group, which has `world_size` ranks. The destructor interrupts it.
  Reporter(std::shared_ptr<Store> store, int32_t world_size);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  ListenerId add(Listener listener);
  // Waits for a running call of the listener, unless called by that call.
  void remove(ListenerId listener);

  // Sends a query and waits until all ranks have answered, at most until the deadline. Returns the answers by rank.
  // Throws core::Error if the store fails.
  std::map<int32_t, std::string> ask(const Query& query, int32_t world_size, Deadline deadline);
  // Sends a query without an answer. Throws likewise.
  void tell(const Query& query, Deadline deadline = Deadline::after(kStoreTimeNs));

  // For a process outside the job: the flight recorders of a job's first group, by rank, through its store. Ranks that
  // did not answer are missing. Throws BP_TIMEOUT if no group uses this store.
  static constexpr const char* kWorld = "reporter/world";  // the key of the number of ranks
  static std::map<int32_t, std::string> traces(Store& store, Deadline deadline, int32_t* world_size);

 private:
  void work();
  bool next(uint64_t number);
  void answer(uint64_t number, const Query& query);
  void tick();
  // Calls `call` for each listener. A listener is not removed during its call.
  void for_each(const std::function<void(const Listener&)>& call);
  static uint64_t publish(Store& store, const Query& query, Deadline deadline);
  static std::map<int32_t, std::string> collect(Store& store, uint64_t number, int32_t world_size, Deadline deadline);

  const std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::list<Listener> listeners_;
  const Listener* called_ = nullptr;  // the listener in the running call
  uint64_t seen_ = 0;                 // number of the last query
  int missing_ = 0;                   // consecutive ticks at which the next query was counted but not there
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace backplane::core
