// SPDX-License-Identifier: Apache-2.0
//
// Messages for which there is no memory.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <latch>
#include <string>

#include "gloo_test.hpp"

namespace backplane::test {
namespace {

constexpr uint64_t kHuge = uint64_t{1} << 40;
constexpr uint64_t kLarge = uint64_t{1} << 30;

// Pages of zeros that take no memory.
class Mapping {
 public:
  explicit Mapping(uint64_t bytes) : bytes_(bytes) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = at == MAP_FAILED ? nullptr : at;
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  const uint64_t bytes_;
};

// The sanitizers' allocators end the process where others throw.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kThrowsWithoutMemory = false;
#else
constexpr bool kThrowsWithoutMemory = true;
#endif

// Lets the process take 256 MiB more of memory, for the life of this object.
class MemoryLimit {
 public:
  MemoryLimit() {
    ::getrlimit(RLIMIT_AS, &before_);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + (uint64_t{256} << 20);
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_ = {};
};

// The receive fails before the payload has arrived, and the payload needs no memory of the receiver. Without memory for
// the rest of the message, the send that times out ends its connection, not the process.
TEST(MessageWithoutMemory, OfOneTebibyteFailsAtOnceOnTheReceiver) {
  if (!kThrowsWithoutMemory) GTEST_SKIP() << "needs an allocator that throws";
  const Mapping huge(kHuge);
  if (huge.data() == nullptr) GTEST_SKIP() << "the system maps no TiB";
  const MemoryLimit limit;
  std::latch refused(1);
  std::latch cancelled(1);
  on_group(2, [&huge, &refused, &cancelled](Agent& agent, int32_t rank) {
    if (rank == 0) {
      bp_work* const sending = started(agent, send_op(1, 4, huge.data(), kHuge));
      refused.wait();
      agent.api().work_cancel(agent.self(), sending);
      EXPECT_EQ(finished(agent, sending), BP_CANCELLED);
      return cancelled.count_down();
    }
    char got[16];
    bp_result result = fresh_result();
    bp_error err = fresh_error();
    EXPECT_EQ(agent.run(recv_op(0, 4, got, sizeof(got), &result), &err), BP_INVALID);
    EXPECT_EQ(result.bytes, kHuge);
    EXPECT_NE(std::string(err.text).find("a message of 1099511627776 bytes from rank 0 does not fit"),
              std::string::npos)
        << err.text;
    refused.count_down();
    cancelled.wait();
  });
}

TEST(MessageWithoutMemory, SendThatTimesOutWithoutMemoryEndsItsConnection) {
  if (!kThrowsWithoutMemory) GTEST_SKIP() << "needs an allocator that throws";
  const Mapping data(kLarge);
  ASSERT_NE(data.data(), nullptr);
  std::latch done(1);
  on_group(3, [&data, &done](Agent& agent, int32_t rank) {
    if (rank == 0) {
      bp_op op = send_op(1, 2, data.data(), kLarge);
      op.timeout_ns = 50'000'000;
      {
        const MemoryLimit limit;
        EXPECT_EQ(agent.run(op), BP_TIMEOUT);
      }
      char byte = 0;
      bp_error err = fresh_error();
      EXPECT_EQ(agent.run(recv_op(1, 3, &byte, 1), &err), BP_PEER_LOST);
      EXPECT_NE(std::string(err.text).find("cannot keep a message whose send has timed out"), std::string::npos)
          << err.text;
      expect_done(agent, send_op(2, 3, &byte, 1));
      return done.count_down();
    }
    char byte = 0;
    if (rank == 2) expect_done(agent, recv_op(0, 3, &byte, 1));
    done.wait();
  });
}

}  // namespace
}  // namespace backplane::test
