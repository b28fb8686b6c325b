// SPDX-License-Identifier: Apache-2.0
//
// Ranks of the plugin shm on threads of one process, over one view of private memory.
#pragma once

#include <errno.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "collectives.hpp"
#include "messages.hpp"
#include "peers.hpp"
#include "progress.hpp"
#include "steps.hpp"
#include "support/eventually.hpp"
#include "support/failures.hpp"
#include "support/optimized.hpp"

namespace backplane::shm::test {

using backplane::test::eventually;

#if defined(__SANITIZE_THREAD__)
constexpr int kEffort = 1;
#elif defined(__SANITIZE_ADDRESS__)
constexpr int kEffort = 3;
#else
constexpr int kEffort = 10;
#endif

struct Memory {
  explicit Memory(int32_t ranks, uint64_t staging = Staging::kLeast)
      : size(Layout(ranks, staging).size()),
        base(static_cast<std::byte*>(std::aligned_alloc(kPage, size))),
        view((std::memset(base, 0, size), base), Layout(ranks, staging)) {}
  ~Memory() { std::free(base); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  size_t size;
  std::byte* base;
  View view;
};

// out = left + right for `count` unaligned u32.
inline void add_u32(void* out, const void* left, const void* right, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t a = 0;
    uint32_t b = 0;
    std::memcpy(&a, static_cast<const char*>(left) + 4 * i, 4);
    std::memcpy(&b, static_cast<const char*>(right) + 4 * i, 4);
    a += b;
    std::memcpy(static_cast<char*>(out) + 4 * i, &a, 4);
  }
}

// A host that offers only the sum of u32.
inline const bp_host* host() {
  static const bp_reduce_api reduce = {
      sizeof(bp_reduce_api),
      0,
      [](uint32_t, uint32_t, void* out, const void* left, const void* right, uint64_t count) -> int32_t {
        add_u32(out, left, right, count);
        return BP_OK;
      },
      nullptr,
      nullptr,
      [](uint32_t, uint32_t, void* out, const void* const* inputs, const void* const*, uint64_t inputs_count, uint64_t,
         uint64_t count) -> int32_t {
        std::vector<uint32_t> sum(count);
        for (uint64_t i = 0; i < inputs_count; ++i) add_u32(sum.data(), sum.data(), inputs[i], count);
        if (count > 0) std::memcpy(out, sum.data(), count * 4);
        return BP_OK;
      }};
  static const bp_host table = [] {
    bp_host result = {};
    result.struct_size = sizeof result;
    result.extension = [](void*, const char*) -> const void* { return &reduce; };
    return result;
  }();
  return &table;
}

// Some containers forbid process_vm_readv.
inline bool may_read() {
  std::byte there{1};
  std::byte here{};
  const iovec from = {&there, 1};
  const iovec to = {&here, 1};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

// Forbids process_vm_readv for this thread and its future threads. Returns false if that is not possible.
inline bool forbid_reading() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {4, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

inline bool may_forbid_reading() {
  bool may = false;
  std::thread([&may] { may = forbid_reading(); }).join();
  return may;
}

// A rank with spin_ns = 0 behaves as with more ranks than processors.
struct Rank {
  Rank(const View& view, int32_t number, int32_t ranks, const WaitPolicy& policy, const Pools* pools = nullptr,
       Cma cma = Cma::kOff, std::function<void(const std::string&)> log = {})
      : id(number),
        size(ranks),
        peers(view, number, ranks),
        uses_membarrier((peers.agree_on_membarrier(), peers.uses_membarrier())),
        waiter(view.member(number).doorbell, &peers, policy, interruption),
        cross(cross_memory(view, number, cma, policy)),
        messages(number, ranks, &view, &peers, pools, waiter, cross.get()),
        reductions(sdk::Host(host())),
        steps(view, number, ranks, peers, waiter, messages),
        collectives(number, ranks, reductions, steps, pools, cross.get(), std::move(log), policy.spin_ns == 0),
        own_heap(pools == nullptr ? nullptr : pools->own().get()) {
    EXPECT_TRUE(peers.join());
  }
  ~Rank() {
    waiter.abort(sdk::Failure(BP_CANCELLED, "the test is over"));
    messages.stop();
    peers.leave();
  }

  std::unique_ptr<sdk::Work> send(int32_t peer, uint64_t tag, const void* data, uint64_t size_of, uint64_t flags = 0) {
    bp_op op = {};
    op.struct_size = sizeof op;
    op.kind = BP_SEND;
    op.dtype = BP_U8;
    op.peer = peer;
    op.tag = tag;
    op.flags = flags;
    op.timeout_ns = kLong;
    op.input = {const_cast<void*>(data), size_of, BP_HOST, 0};
    return messages.submit(op);
  }
  std::unique_ptr<sdk::Work> recv(int32_t peer, uint64_t tag, void* data, uint64_t size_of, bp_result* result = nullptr,
                                  uint64_t flags = 0, int64_t timeout_ns = kLong) {
    bp_op op = {};
    op.struct_size = sizeof op;
    op.kind = BP_RECV;
    op.dtype = BP_U8;
    op.peer = peer;
    op.tag = tag;
    op.flags = flags;
    op.timeout_ns = timeout_ns;
    op.output = {data, size_of, BP_HOST, 0};
    op.result = result;
    return messages.submit(op);
  }
  static std::unique_ptr<CrossMemory> cross_memory(const View& view, int32_t number, Cma cma,
                                                   const WaitPolicy& policy) {
    const std::optional<ReadLimits> limits = read_limits(cma, false, policy.spin_ns > 0);
    view.member(number).may_read = limits ? 1 : 0;
    return limits ? std::make_unique<CrossMemory>(view, number, -1, *limits) : nullptr;
  }
  static void finish(const std::unique_ptr<sdk::Work>& work) {
    if (work) {
      EXPECT_TRUE(work->wait(kLong));
    }
  }

  static constexpr int64_t kLong = INT64_C(60'000'000'000);
  const int32_t id;
  const int32_t size;
  Peers peers;
  const bool uses_membarrier;  // sleepers execute the fence
  const sdk::Interruption interruption = {};
  Waiter waiter;
  const std::unique_ptr<CrossMemory> cross;  // reads this process
  Messages messages;
  Reductions reductions;
  Steps steps;
  Collectives collectives;
  Heaps* const own_heap;  // may be null
};

using Log = std::function<void(int32_t rank, const std::string& text)>;

// Runs body(rank) on a thread per rank once all have joined. They leave together. `pools`: one per rank, or none.
template <typename Body>
void run_ranks(const Memory& memory, int32_t ranks, const WaitPolicy& policy, const Body& body,
               const std::vector<Pools>& pools = {}, Cma cma = Cma::kOff, const Log& log = {}) {
  std::vector<std::unique_ptr<Rank>> all;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const Pools* const own = pools.empty() ? nullptr : &pools[static_cast<size_t>(rank)];
    const auto tell = [&log, rank](const std::string& text) {
      if (log) log(rank, text);
    };
    all.push_back(std::make_unique<Rank>(memory.view, rank, ranks, policy, own, cma, tell));
  }
  std::vector<std::thread> threads;
  for (auto& rank : all) {
    threads.emplace_back([&body, &rank] {
      try {
        body(*rank);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank->id << ": " << e.what();
        rank->waiter.abort(sdk::Failure(BP_CANCELLED, e.what()));
        rank->peers.abort(sdk::Failure(BP_CANCELLED, e.what()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Runs twice: with fences on both sides and the least staging, and with membarrier if available and more.
template <typename Body>
void on_ranks(int32_t ranks, const WaitPolicy& policy, const Body& body) {
  run_ranks(Memory(ranks), ranks, policy, body);
  const Memory memory(ranks, UINT64_C(2) << 20);
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) != 0) return;
  for (int32_t rank = 0; rank < ranks; ++rank) memory.view.member(rank).has_membarrier = 1;
  run_ranks(memory, ranks, policy, [&body](Rank& rank) {
    EXPECT_TRUE(rank.uses_membarrier);
    body(rank);
  });
}

BACKPLANE_TEST_OPTIMIZED inline std::byte byte_of(uint64_t name, uint64_t index) {
  return static_cast<std::byte>((name * 131 + index * 7 + (index >> 8)) & 255);
}
BACKPLANE_TEST_OPTIMIZED inline void fill(std::byte* bytes, uint64_t size, uint64_t name) {
  for (size_t i = 0; i < size; ++i) bytes[i] = byte_of(name, i);
}
inline void fill(std::vector<std::byte>& bytes, uint64_t name) { fill(bytes.data(), bytes.size(), name); }
BACKPLANE_TEST_OPTIMIZED inline bool is_filled(const std::byte* bytes, uint64_t size, uint64_t name) {
  for (size_t i = 0; i < size; ++i) {
    if (bytes[i] != byte_of(name, i)) return false;
  }
  return true;
}
inline bool is_filled(const std::vector<std::byte>& bytes, uint64_t size, uint64_t name) {
  return size <= bytes.size() && is_filled(bytes.data(), size, name);
}

// Writes the announcement of a message with tag 1 into head i of rank 1's channel to rank 0.
inline void announce(const Memory& memory, size_t i, uint64_t size, uint64_t place) {
  Head& head = memory.view.channel(0, 1).heads[i];
  head.kind_and_length = static_cast<uint32_t>(Kind::kAnnounce);
  head.tag = 1;
  head.control = {i + 1, size, {place, 0}};
  head.sequence.store(static_cast<uint32_t>(i + 1));
  memory.view.opened(0, 1).store(1);
}

// The status of the plugin's failure; BP_OK if the call succeeds.
template <typename Call>
int32_t status_of(const Call& call, std::string* text = nullptr) {
  return backplane::test::status_of<sdk::Failure>(call, text);
}

// Waits until a rank has published a step.
inline void await_step(const View& view, int32_t rank, uint32_t step) {
  const Line& line = view.line(rank, step);
  EXPECT_TRUE(eventually([&line, step] { return line.step.load() == step; }))
      << "rank " << rank << " shows no " << step;
}

// Yields now and then.
inline void yield_sometimes(std::mt19937_64& random) {
  if (random() % 8 == 0) sched_yield();
}

}  // namespace backplane::shm::test
