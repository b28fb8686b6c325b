// SPDX-License-Identifier: Apache-2.0
#include "async_support.hpp"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <utility>

namespace backplane::conformance {
namespace {

uint8_t byte_of(uint64_t key, uint64_t i) {
  const uint64_t x = (key * UINT64_C(0x9E3779B97F4A7C15)) ^ (i * UINT64_C(0xD1B54A32D192ED03));
  return static_cast<uint8_t>(x >> 56 ^ x >> 24);
}

void pause_shortly() {
  const timespec time = {0, kMillisecond};
  nanosleep(&time, nullptr);
}

// 'S' sleeping, 'R' running, 'D' ...; '?' if unknown.
char state_of_thread(pid_t id) {
  std::ifstream file("/proc/self/task/" + std::to_string(id) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_ends = line.rfind(')');
  return name_ends == std::string::npos || name_ends + 2 >= line.size() ? '?' : line[name_ends + 2];
}

}  // namespace

Plan in_space(const std::string& space) {
  Plan plan;
  plan.space = space;
  return plan;
}

Plan in_space(const std::string& space, const std::vector<int32_t>& members, int32_t place) {
  Plan plan = in_space(space);
  plan.rank = place;
  plan.world_size = static_cast<int32_t>(members.size());
  plan.global_ranks = members;
  return plan;
}

std::vector<uint8_t> bytes_of(uint64_t key, uint64_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint64_t i = 0; i < size; ++i) bytes[i] = byte_of(key, i);
  return bytes;
}

int64_t first_wrong(const std::vector<uint8_t>& bytes, uint64_t key) {
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != byte_of(key, i)) return static_cast<int64_t>(i);
  }
  return -1;
}

void require_bytes(Rank& rank, const std::vector<uint8_t>& bytes, uint64_t key, const std::string& what) {
  const int64_t wrong = first_wrong(bytes, key);
  rank.require(wrong < 0, fmt::format("the bytes of {}", what),
               fmt::format("a wrong byte at index {} of {}", wrong, bytes.size()));
}

Outcome try_ring(Rank& rank, Agent& agent, uint64_t tag, uint64_t salt, uint64_t size) {
  const int32_t next = (agent.rank() + 1) % agent.size();
  const int32_t previous = (agent.rank() + agent.size() - 1) % agent.size();
  const auto key_of = [tag, salt](int32_t sender) {
    return salt * 1'000'000'007 + tag * 1009 + static_cast<uint64_t>(sender) + 1;
  };
  const std::vector<uint8_t> sent = bytes_of(key_of(agent.rank()), size);
  std::vector<uint8_t> got(size);
  bp_result result = make_result();
  Pending recv = agent.irecv(previous, tag, got.data(), size, &result);
  Pending send = agent.isend(next, tag, sent.data(), size);
  const Outcome received = recv.finish(rank.hang_limit(kEndLimit));
  const Outcome done = send.finish(received.ok() ? rank.hang_limit(kEndLimit) : 0);
  if (!received.ok()) return received;
  rank.require(result.source == previous && result.bytes == size,
               fmt::format("a message of {} bytes from rank {} of the group", size, previous),
               fmt::format("{} bytes from rank {}", result.bytes, result.source));
  require_bytes(rank, got, key_of(previous), fmt::format("the message of rank {} with tag {}", previous, tag));
  return done;
}

void ring(Rank& rank, Agent& agent, const std::string& when, uint64_t tag, uint64_t salt, uint64_t size) {
  rank.step(fmt::format("sending to the next rank and receiving from the one before {}", when));
  rank.require_ok(try_ring(rank, agent, tag, salt, size), fmt::format("a message round the ring {}", when));
}

bool make_collective(const Rank& rank, bp_op& op, int32_t* memory) {
  if (rank.capability(BP_BARRIER) != nullptr) {
    op = make_op(BP_BARRIER);
    op.seq = 1;
    return true;
  }
  const bp_capability* reduce = rank.capability(BP_ALL_REDUCE);
  if (reduce == nullptr || (reduce->dtypes & BP_BIT(BP_I32)) == 0 || (reduce->reduce_ops & BP_BIT(BP_SUM)) == 0 ||
      (reduce->memory & rank.memory()) == 0) {
    return false;
  }
  op = make_op(BP_ALL_REDUCE, BP_I32);
  op.reduce_op = BP_SUM;
  op.seq = 1;
  op.input = op.output = {memory, 1, BP_HOST, 0};
  return true;
}

bp_op unmatched_recv(Agent& agent, void* memory, uint64_t size) {
  return recv_op((agent.rank() + 1) % agent.size(), kSilentTag, memory, size);
}

void abandon(Rank& rank, Agent& agent, std::vector<Pending>& pending) {
  const auto ended = [&pending] {
    return std::all_of(pending.begin(), pending.end(), [](Pending& one) {
      if (one.in_flight() && one.test().status != BP_AGAIN) one.release();
      return !one.in_flight();
    });
  };
  for (Pending& one : pending) one.cancel();
  if (poll_until(kSecond, ended)) return;
  agent.abort(BP_CANCELLED, -1, "the case is over");
  rank.require(poll_until(rank.hang_limit(kEndLimit), ended), "operations that end after abort", "some go on");
}

void close_in_time(Rank& rank, Agent& agent, const std::string& when) {
  rank.step("in destroy " + when);
  const Stopwatch watch;
  agent.close();
  rank.check_time(watch.took(), rank.scaled(kCloseBound), fmt::format("destroy {} returns", when));
  rank.step("after destroy " + when);
}

bool on_any_rank(Rank& rank, const std::string& key, bool here) {
  rank.publish(fmt::format("{}/{}", key, rank.id()), here ? "yes" : "no");
  bool any = false;
  for (int32_t other = 0; other < rank.size(); ++other) {
    any = rank.await_value(fmt::format("{}/{}", key, other)) == "yes" || any;
  }
  return any;
}

TestThread::TestThread(std::function<void()> body) : state_(std::make_shared<State>()) {
  thread_ = std::thread([state = state_, run = std::move(body)] {
    state->id.store(static_cast<pid_t>(syscall(SYS_gettid)));
    run();
    state->ended.store(true);
  });
}

TestThread::~TestThread() {
  if (std::uncaught_exceptions() > 0 && !await(kSecond)) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

bool TestThread::await(Nanoseconds timeout) const {
  return poll_until(timeout, [this] { return ended(); });
}

void TestThread::await_asleep() const {
  int asleep = 0;
  poll_until(kSecond / 2, [this, &asleep] {
    if (ended()) return true;
    asleep = id() != 0 && state_of_thread(id()) == 'S' ? asleep + 1 : 0;
    return asleep == 3;  // not only for a lock
  });
}

Blocked::Blocked(Agent& agent, bp_op op, How how) : state_(std::make_shared<State>()) {
  op.timeout_ns = BP_NO_TIMEOUT;
  if (how == How::kInSubmit) op.flags |= BP_OP_SYNC;
  thread_ = std::make_unique<TestThread>([&agent, op, state = state_] {
    Pending pending = agent.submit(op);  // a backend may ignore BP_OP_SYNC
    state->outcome = pending.wait(BP_NO_TIMEOUT);
    state->ended_at = now();
    if (state->outcome.status != BP_AGAIN) pending.release();
  });
  thread_->await_asleep();
}

const char* name_of(Blocked::How how) { return how == Blocked::How::kInSubmit ? "submit (BP_OP_SYNC)" : "work_wait"; }

bool poll_until(Nanoseconds timeout, const std::function<bool()>& done) {
  const Nanoseconds deadline = now() + timeout;
  while (!done()) {
    if (now() >= deadline) return done();
    pause_shortly();
  }
  return true;
}

}  // namespace backplane::conformance
