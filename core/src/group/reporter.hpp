// SPDX-License-Identifier: Apache-2.0
//
// Queries between the ranks of a job about their groups, while an operation does not end. They go through the store and
// are answered on a thread of the core, so that a rank answers whatever its program is doing. One thread per rank and
// job; it blocks until the next query.
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

inline constexpr int64_t kStoreTimeNs = INT64_C(5) * 1000000000;  // the store answers at once unless it is lost

inline constexpr const char* kFirstGroup = "0";  // key of a job's first group

// Sent by one rank to all ranks of a group.
struct Query {
  enum class Kind : uint32_t {
    kPosition,  // the answer is the position with regard to collective `seq`
    kBroken,    // no answer: the group is broken, by `status`, `culprit` and `text`
    kTrace      // the answer is the flight recorders of the group and of those made from it
  };
  Kind kind = Kind::kPosition;
  std::string group;  // its key
  int32_t rank = -1;  // the sender, in that group
  uint64_t seq = 0;
  int32_t status = 0;
  int32_t culprit = -1;
  std::string text;
};

class Reporter {
 public:
  // A group. Its functions are called on the reporter's thread.
  struct Listener {
    std::string group;
    int32_t rank = -1;
    std::function<std::string(const Query&)> answer;  // empty: no answer
    std::function<void()> tick;                       // about once a second
  };
  using ListenerId = std::list<Listener>::iterator;

  // `store`: a view of that of the job's first group, which has `world_size` ranks; it is interrupted at the end.
  Reporter(std::shared_ptr<Store> store, int32_t world_size);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  ListenerId add(Listener listener);
  // Waits until the reporter's thread has returned from the listener, unless that thread is the caller.
  void remove(ListenerId listener);

  // Sends a query and waits until all ranks have answered or the deadline has passed. Returns the answers by rank.
  // Throws if the store fails.
  std::map<int32_t, std::string> ask(const Query& query, int32_t world_size, Deadline deadline);
  // Sends a query without an answer.
  void tell(const Query& query);

  // For a process outside the job: the flight recorders of all ranks of a job's first group, by rank, through its
  // store. A missing rank did not answer. Throws BP_TIMEOUT if no group uses this store.
  static constexpr const char* kWorld = "reporter/world";  // the key that says how many ranks there are
  static std::map<int32_t, std::string> traces(Store& store, Deadline deadline, int32_t* world_size);

 private:
  void work();
  bool next(uint64_t number);
  void answer(uint64_t number, const Query& query);
  void tick();
  // Calls `call` for each listener, which cannot be removed meanwhile.
  void for_each(const std::function<void(const Listener&)>& call);
  static uint64_t publish(Store& store, const Query& query, Deadline deadline);
  static std::map<int32_t, std::string> collect(Store& store, uint64_t number, int32_t world_size, Deadline deadline);

  const std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::list<Listener> listeners_;
  const Listener* busy_ = nullptr;  // the one that is being called
  uint64_t seen_ = 0;               // queries so far
  int missing_ = 0;                 // how often in a row the next query was announced but not there
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace backplane::core
