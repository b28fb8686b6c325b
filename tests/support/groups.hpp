// SPDX-License-Identifier: Apache-2.0
//
// Groups whose ranks are threads of the test, over every backend that was built.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backplane/backplane.hpp"
#include "support/environment.hpp"

namespace backplane::test {

// Backends whose ranks may be processes.
inline std::vector<std::string> process_backends() {
  std::vector<std::string> names;
#ifdef BACKPLANE_TEST_zmq
  names.emplace_back("zmq");
#endif
#ifdef BACKPLANE_TEST_gloo
  names.emplace_back("gloo");
#endif
#ifdef BACKPLANE_TEST_shm
  names.emplace_back("shm");
#endif
  return names;
}

inline std::vector<std::string> built_backends() {
  std::vector<std::string> names = process_backends();
  names.insert(names.begin(), "inproc");
  return names;
}

// Composites of them, for hosts that the test imagines.
inline std::vector<std::string> composite_backends() {
  std::vector<std::string> names;
#ifdef BACKPLANE_TEST_shm
#ifdef BACKPLANE_TEST_zmq
  names.emplace_back("shm+zmq");
#endif
#ifdef BACKPLANE_TEST_gloo
  names.emplace_back("shm+gloo");
#endif
#endif
  return names;
}

// While it exists, the ranks of composites are on several hosts, in no order: two ranks are alone, three are 1 + 2,
// four 2 + 2, five 2 + 2 + 1.
class ImaginedHosts {
 public:
  explicit ImaginedHosts(const std::string& backend) {
    if (backend.find('+') != std::string::npos) hosts_.emplace("BACKPLANE_IMAGINED_HOSTS", "0,1,1,0,2,2,0,1,2");
  }

 private:
  std::optional<ScopedVariable> hosts_;
};

// Runs body(rank) on a thread per rank; an exception of any rank fails the test with its text.
inline void on_ranks(int world_size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([rank, &body] {
      try {
        body(rank);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank << ": " << e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The options of one rank of a group over `backend` that meets in `store`.
inline GroupOptions group_options(const std::string& backend, const Store& store, int rank, int world_size,
                                  Timeout timeout = std::chrono::seconds(60)) {
  GroupOptions options;
  options.backend = backend;
  options.store = store;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = timeout;
  options.name = "test";
  return options;
}

// Where the ranks of a test, which are threads, wait for each other.
class MeetingPoint {
 public:
  explicit MeetingPoint(int world_size) : all_(world_size) {}
  // Calls `call`, then waits for the others, which do not wait for a rank whose call has thrown.
  template <typename Call>
  void after(const Call& call) {
    try {
      call();
    } catch (...) {
      all_.arrive_and_drop();
      throw;
    }
    all_.arrive_and_wait();
  }

 private:
  std::barrier<> all_;
};

// A barrier of a group, whose ranks are threads, that all ranks have left when it returns on one. After barrier() of a
// group another rank may be in it still, and an abort would end it there.
class BarrierLeftByAll {
 public:
  explicit BarrierLeftByAll(int world_size) : left_(world_size) {}
  void operator()(ProcessGroup& group) {
    left_.after([&group] { group.barrier(); });
  }

 private:
  MeetingPoint left_;
};

// Runs body(group) for each rank of a group over `backend`.
inline void in_group(const std::string& backend, int world_size, const std::function<void(ProcessGroup&)>& body) {
  const Store store = Store::inproc();
  on_ranks(world_size, [&backend, &store, world_size, &body](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options(backend, store, rank, world_size));
    body(group);
    group.barrier();  // no rank leaves while another needs it
  });
}

// The status with which `call` fails. Fails the test if it succeeds. *text gets the error text.
template <typename Call>
Status failure_of(const Call& call, std::string* text = nullptr) {
  try {
    call();
  } catch (const Error& e) {
    if (text != nullptr) *text = e.what();
    return e.status();
  }
  ADD_FAILURE() << "the call succeeded";
  return Status::kInternal;
}

// A test for each of several backends and world sizes.
class BackendTest : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  void in_group(const std::function<void(ProcessGroup&)>& body) const { test::in_group(backend(), world_size(), body); }

 private:
  const ImaginedHosts hosts_{backend()};
};

inline std::string backend_test_name(const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  std::string name = std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
}

}  // namespace backplane::test
