// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a job talk about their groups while an operation does not end: through the store, on a thread of the
// core's own, so that a rank answers whatever its program is doing. One thread per rank and job; it waits for the next
// question, which costs nobody anything.
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

// What one rank wants from the others of a group.
struct Question {
  enum class Kind : uint32_t {
    kWhere,   // answer with the position with regard to collective `seq`
    kBroken,  // no answer: the group is broken, by `status`, `culprit` and `text`
    kTrace    // answer with the flight recorders of the group and of those made from it
  };
  Kind kind = Kind::kWhere;
  std::string group;  // its key
  int32_t rank = -1;  // who asks, in that group
  uint64_t seq = 0;
  int32_t status = 0;
  int32_t culprit = -1;
  std::string text;
};

class Reporter {
 public:
  // A group, as long as it lives. All are called on the reporter's thread.
  struct Listener {
    std::string group;
    int32_t rank = -1;
    std::function<std::string(const Question&)> answer;  // empty: no answer
    std::function<void()> tick;                          // about once a second
  };
  using Seat = std::list<Listener>::iterator;

  // `store`: a view of that of the job's first group, which has `world_size` ranks; it is interrupted at the end.
  Reporter(std::shared_ptr<Store> store, int32_t world_size);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  Seat enter(Listener listener);
  // Waits until the reporter's thread has left the listener, unless it is the caller.
  void leave(Seat seat);

  // Asks all ranks and waits until all have answered or the deadline has passed. Answers by rank. Throws if the store
  // fails.
  std::map<int32_t, std::string> ask(const Question& question, int32_t world_size, Deadline deadline);
  // The same without waiting for anything.
  void tell(const Question& question);

  // For those who are no rank: the flight recorders of all ranks of a job's first group, by rank, through its store. A
  // rank that is missing did not answer. Throws BP_TIMEOUT if no group works with this store.
  static constexpr const char* kWorld = "reporter/world";  // the key that says how many ranks there are
  static std::map<int32_t, std::string> traces(Store& store, Deadline deadline, int32_t* world_size);

 private:
  void work();
  bool next(uint64_t number);
  void deal_with(uint64_t number, const Question& question);
  void tick();
  // Calls `call` for each listener, none of which can leave meanwhile.
  void for_each(const std::function<void(const Listener&)>& call);
  static uint64_t publish(Store& store, const Question& question, Deadline deadline);
  static std::map<int32_t, std::string> collect(Store& store, uint64_t number, int32_t world_size, Deadline deadline);

  const std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::condition_variable left_;
  std::list<Listener> listeners_;
  const Listener* busy_ = nullptr;  // the one that is being called
  uint64_t seen_ = 0;               // questions so far
  int missing_ = 0;                 // how often in a row the next question was announced but not there
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace backplane::core
