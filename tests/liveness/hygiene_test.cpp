// SPDX-License-Identifier: Apache-2.0
//
// Groups that are destroyed or aborted leak nothing: no descriptor, no thread, nothing in /dev/shm, and no memory.
// BACKPLANE_HYGIENE_CYCLES (100) is the number of groups of each kind.
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
#include "support/resources.hpp"

namespace backplane::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kChecksMemory = false;  // would measure the sanitizer's memory
constexpr int kCycles = 50;
#else
constexpr bool kChecksMemory = true;
constexpr int kCycles = 100;
#endif
// Detects leaks of more bytes per cycle. Smaller differences are the allocator's.
constexpr uint64_t kBytesPerCycle = 1024;

int cycles() {
  const char* text = std::getenv("BACKPLANE_HYGIENE_CYCLES");
  return text == nullptr ? kCycles : std::max(std::atoi(text), 8);
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
  size_t descriptors = entries_of("/proc/self/fd");
  size_t threads = entries_of("/proc/self/task");
  std::set<std::string> shared = shared_memory();
};

// Ignores removed files in /dev/shm: the next process that creates a file there removes those of killed processes.
bool is_as_before(const Footprint& before, const Footprint& now) {
  return now.descriptors == before.descriptors && now.threads == before.threads &&
         std::includes(before.shared.begin(), before.shared.end(), now.shared.begin(), now.shared.end());
}

constexpr std::chrono::milliseconds kPollInterval{2};

// The footprint with the fewest threads seen: a joined thread remains in /proc for a short time.
Footprint settled() {
  Footprint least;
  for (int poll = 0; poll < 50; ++poll) {
    std::this_thread::sleep_for(kPollInterval);
    const Footprint now;
    if (now.threads < least.threads) least = now;
  }
  return least;
}

bool becomes(const Footprint& expected) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is_as_before(expected, Footprint())) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

class HygieneTest : public testing::TestWithParam<std::string> {
 protected:
  // After a warm-up of a quarter, compares the peaks of memory in the two halves: a leak makes them differ.
  void repeat(const std::function<void()>& cycle) {
    ::mallopt(M_ARENA_MAX, 1);  // one heap, so that its size is comparable
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
    EXPECT_TRUE(becomes(before)) << before.descriptors << " descriptors became " << after.descriptors << ", "
                                 << before.threads << " threads " << after.threads << ", " << before.shared.size()
                                 << " entries of /dev/shm " << after.shared.size();
    std::printf("%d times over %s: %zu descriptors, %zu threads, peaks of %.1f and %.1f MiB\n", count,
                GetParam().c_str(), before.descriptors, before.threads, static_cast<double>(peaks[0]) / 0x1p20,
                static_cast<double>(peaks[1]) / 0x1p20);
    const uint64_t allowed = kBytesPerCycle * static_cast<uint64_t>(std::max(count / 2, 500));
    if (kChecksMemory) {
      EXPECT_LE(peaks[1], peaks[0] + allowed);
    }
  }

  // Two ranks with their own store server.
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

TEST_P(HygieneTest, GroupsLeakNothing) {
  repeat([this] {
    in_new_group([](ProcessGroup& group, const Store&) {
      int value = 1;
      group.all_reduce(as_buffer(value));
      EXPECT_EQ(value, 2);
      group.barrier();
    });
  });
}

TEST_P(HygieneTest, AbortedGroupsLeakNothing) {
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
