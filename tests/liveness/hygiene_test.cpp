// SPDX-License-Identifier: Apache-2.0
//
// Groups that come and go, in peace and by abort, leave nothing behind: no descriptor, no thread, nothing in /dev/shm,
// and no memory. BACKPLANE_HYGIENE_CYCLES (100) says how many of each kind.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kJudgesMemory = false;  // it would be the sanitizer's
constexpr int kCycles = 50;
#else
constexpr bool kJudgesMemory = true;
constexpr int kCycles = 100;
#endif
// A leak of more than this many bytes per cycle is found; below it is what the allocator does on its own.
constexpr uint64_t kBytesPerCycle = 1024;

int cycles() {
  const char* text = std::getenv("BACKPLANE_HYGIENE_CYCLES");
  return text == nullptr ? kCycles : std::max(std::atoi(text), 8);
}

size_t entries(const char* directory) {
  const std::filesystem::directory_iterator begin(directory);
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

std::set<std::string> shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path().filename());
  return names;
}

uint64_t resident_bytes() {
  uint64_t total = 0;
  uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

struct Footprint {
  size_t descriptors = entries("/proc/self/fd");
  size_t threads = entries("/proc/self/task");
  std::set<std::string> shared = shared_memory();
};

// What a killed process had left in /dev/shm may go meanwhile: whoever makes the next file there removes it.
bool is_as_before(const Footprint& before, const Footprint& now) {
  return now.descriptors == before.descriptors && now.threads == before.threads &&
         std::includes(before.shared.begin(), before.shared.end(), now.shared.begin(), now.shared.end());
}

constexpr std::chrono::milliseconds kBetweenLooks{2};

// A thread that was joined is seen in /proc for another moment: what is left once fewer and fewer have been seen.
Footprint settled() {
  Footprint least;
  for (int look = 0; look < 50; ++look) {
    std::this_thread::sleep_for(kBetweenLooks);
    const Footprint now;
    if (now.threads < least.threads) least = now;
  }
  return least;
}

bool comes_to(const Footprint& expected) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is_as_before(expected, Footprint())) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

class HygieneTest : public testing::TestWithParam<std::string> {
 protected:
  // Memory is judged by its peaks in the two halves after a warm-up of a quarter: they differ where something grows.
  void repeat(const std::function<void()>& cycle) {
    ::mallopt(M_ARENA_MAX, 1);  // one heap, so that its size says something
    const int count = cycles();
    const int warm = count / 4;
    for (int i = 0; i < warm && !HasFailure(); ++i) cycle();
    const Footprint before = settled();
    uint64_t peaks[2] = {};
    for (int i = 0; i < count && !HasFailure(); ++i) {
      cycle();
      uint64_t& peak = peaks[i < count / 2 ? 0 : 1];
      peak = std::max(peak, resident_bytes());
    }
    const Footprint after;
    EXPECT_TRUE(comes_to(before)) << before.descriptors << " descriptors became " << after.descriptors << ", "
                                  << before.threads << " threads " << after.threads << ", " << before.shared.size()
                                  << " entries of /dev/shm " << after.shared.size();
    std::printf("%d times over %s: %zu descriptors, %zu threads, peaks of %.1f and %.1f MiB\n", count,
                GetParam().c_str(), before.descriptors, before.threads, static_cast<double>(peaks[0]) / 0x1p20,
                static_cast<double>(peaks[1]) / 0x1p20);
    const uint64_t allowed = kBytesPerCycle * static_cast<uint64_t>(std::max(count / 2, 500));
    if (kJudgesMemory) {
      EXPECT_LE(peaks[1], peaks[0] + allowed);
    }
  }

  // Two ranks meet through a server of their own.
  void in_new_group(const std::function<void(ProcessGroup&, const Store&)>& body) {
    const StoreServer server;
    on_ranks(2, [&server, &body](int rank) {
      const Store store = Store::connect("127.0.0.1", server.port());
      ProcessGroup group = ProcessGroup::create(group_options(GetParam(), store, rank, 2));
      body(group, store);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, HygieneTest, testing::ValuesIn(built_backends()),
                         [](const auto& info) { return info.param; });

TEST_P(HygieneTest, GroupsLeaveNothingBehind) {
  repeat([this] {
    in_new_group([](ProcessGroup& group, const Store&) {
      int value = 1;
      group.all_reduce(as_buffer(value));
      EXPECT_EQ(value, 2);
      group.barrier();
    });
  });
}

TEST_P(HygieneTest, AbortedGroupsLeaveNothingBehind) {
  repeat([this] {
    in_new_group([](ProcessGroup& group, const Store& store) {
      int value = 0;
      Work pending = group.irecv(as_buffer(value), 1 - group.rank());
      Store meeting = store;
      meeting.set(std::to_string(group.rank()), "waits");
      meeting.wait({"0", "1"});
      group.abort("enough");
      failure_of([&pending] { pending.wait(); });
      failure_of([&group] { group.barrier(); });
    });
  });
}

}  // namespace
}  // namespace backplane::test
