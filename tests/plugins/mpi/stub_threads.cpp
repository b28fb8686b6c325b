// SPDX-License-Identifier: Apache-2.0
//
// Two ranks whose threads submit and wait at the same time.
#include <condition_variable>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "stub_ranks.hpp"

namespace backplane::stub_ranks {
namespace {

constexpr int kRounds = 30;
constexpr uint32_t kAnyTagOfThread = 100;
constexpr uint32_t kNever = 200;

std::vector<int32_t> values(int seed, size_t count) {
  std::vector<int32_t> result(count);
  for (size_t i = 0; i < count; ++i) result[i] = static_cast<int32_t>(i) * 7 + seed;
  return result;
}

// Messages of a thread, in windows, with a tag of its own.
void exchange(ProcessGroup& group, uint32_t tag) {
  const int peer = 1 - group.rank();
  for (int round = 0; round < kRounds; ++round) {
    const size_t count = round % 10 == 0 ? 70'000 : static_cast<size_t>(100 * round);
    std::vector<std::vector<int32_t>> received(3, std::vector<int32_t>(count));
    std::vector<std::vector<int32_t>> sent;
    std::vector<Work> works;
    for (auto& each : received) works.push_back(group.irecv(each, peer, tag));
    for (int i = 0; i < 3; ++i) sent.push_back(values(10 * round + i, count));
    for (const auto& each : sent) works.push_back(group.isend(each, peer, tag));
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    expect(received == sent, "the messages of a thread in order");
  }
}

void take_any(ProcessGroup& group) {
  std::vector<int32_t> value(1);
  for (int round = 0; round < kRounds; ++round) {
    Work work = group.irecv(value, ProcessGroup::kAnySource, kAnyTagOfThread);
    const std::vector<int32_t> sent(1, round);
    group.send(sent, 1 - group.rank(), kAnyTagOfThread);
    work.wait();
    expect(value[0] == round && work.received().source == 1 - group.rank(), "a message of any rank");
  }
}

void reduce(ProcessGroup& group) {
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int32_t> own = values(group.rank(), 5'000);
    std::vector<int32_t> other = own;
    Work first = group.all_reduce(own, ReduceOp::kSum, {.async_op = true});
    Work second = group.all_reduce(other, ReduceOp::kMax, {.async_op = true});
    second.wait();
    first.wait();
    expect(own[1] == 15 && other[1] == 8, "the sum and the maximum");
  }
}

// One thread waits while the other cancels.
void cancel(ProcessGroup& group) {
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int32_t> value(1);
    Work work = group.irecv(value, 1 - group.rank(), kNever);
    std::thread other([&work] { work.cancel(); });
    std::exception_ptr failure;
    try {
      failure_of(Status::kCancelled, [&work] { work.wait(); });
    } catch (...) {
      failure = std::current_exception();
    }
    other.join();
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace

void threads(const std::string& file) {
  ProcessGroup group = ProcessGroup::create(world_options(file));
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::function<void()>> bodies = {[&group] { take_any(group); }, [&group] { reduce(group); },
                                               [&group] { cancel(group); }};
  for (uint32_t tag = 1; tag <= 3; ++tag) bodies.emplace_back([&group, tag] { exchange(group, tag); });
  std::vector<std::thread> running;
  running.reserve(bodies.size());
  for (const auto& body : bodies) {
    running.emplace_back([&body, &mutex, &failure, &group] {
      try {
        body();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        group.abort(error.what());
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  if (failure) std::rethrow_exception(failure);
  group.barrier();
  expect(count("requests") == 0 && count("messages") == 0 && count("groups") == 0, "nothing left in MPI");
}

// Two threads make a group of the same processes and name at the same time.
void groups_at_once(const std::string& file) {
  ProcessGroup group = ProcessGroup::create(world_options(file));
  const std::vector<int> members[] = {{0, 1}, {1, 0}};
  std::vector<std::future<ProcessGroup>> made;
  struct Release {
    ~Release() { command("clear=MPI_Comm_create_group"); }
  };
  command("hang=MPI_Comm_create_group");
  {
    const Release release;
    for (const std::vector<int>& each : members) {
      made.push_back(
          std::async(std::launch::async, [&group, &each] { return group.new_group_by_members(each, "made"); }));
    }
    await([] { return calls("hanging MPI_Comm_create_group") == 2; }, "both groups to be made at the same time");
  }
  std::vector<ProcessGroup> groups;
  for (auto& each : made) groups.push_back(each.get());
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<int32_t> sum(1, i == 0 ? 1 : 100);
    groups[i].all_reduce(sum);
    expect(sum[0] == (i == 0 ? 2 : 200), "the ranks of one group to meet in it");
  }
  group.barrier();
}

// No thread waits for these operations; their ends are told.
void unattended(const std::string& file) {
  constexpr uint32_t kMessages = 20;
  ProcessGroup group = ProcessGroup::create(world_options(file));
  const int peer = 1 - group.rank();
  std::mutex mutex;
  std::condition_variable changed;
  uint32_t ended = 0;
  std::string failures;
  std::vector<std::vector<int32_t>> received(kMessages, std::vector<int32_t>(20'000));
  for (uint32_t i = 0; i < kMessages; ++i) {
    const auto end = [&](const Error* failure) {
      const std::lock_guard lock(mutex);
      if (failure != nullptr) failures += failure->what();
      ++ended;
      changed.notify_all();
    };
    group.irecv(received[i], peer, i).on_done(end);
    Work sent = group.isend(values(static_cast<int>(i), 20'000), peer, i);  // dropped
  }
  {
    std::unique_lock lock(mutex);
    expect(changed.wait_for(lock, kTimeout, [&ended] { return ended == kMessages; }), "all ends to be told");
    expect(failures.empty(), "no failure: " + failures);
  }
  for (uint32_t i = 0; i < kMessages; ++i) {
    expect(received[i] == values(static_cast<int>(i), 20'000), "the message");
  }
  group.barrier();
}

}  // namespace backplane::stub_ranks
