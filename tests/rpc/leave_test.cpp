// SPDX-License-Identifier: Apache-2.0
//
// Calls during shutdown.
#include <atomic>
#include <latch>
#include <thread>

#include "rpc/gate.hpp"
#include "rpc/workers.hpp"
#include "support/eventually.hpp"
#include "support/scoped_log.hpp"

namespace backplane::test {
namespace {

using Bytes = rpc::Array<uint8_t>;

constexpr size_t kLarge = size_t{4} << 20;

std::shared_ptr<Gate> leave_gate = std::make_shared<Gate>();

[[maybe_unused]] const bool leave_registered = [] {
  rpc::register_function("one at leave", [] { return 1; });
  rpc::register_function("wait for leave", [] { leave_gate->wait(); });
  rpc::register_function("many bytes", [] { return Bytes(std::vector<uint8_t>(kLarge)); });
  return true;
}();

class RpcLeaveTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, RpcLeaveTest, testing::ValuesIn(rpc_transports()),
                         [](const auto& info) { return info.param; });

TEST_P(RpcLeaveTest, GracefulShutdownDeliversAllReplies) {
  std::vector<rpc::Future<Bytes>> answers;
  in_world(GetParam(), 2, [&answers](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    for (int i = 0; i < 4; ++i) answers.push_back(worker.rpc_async<Bytes>(1, "many bytes"));
  });
  for (const auto& answer : answers) EXPECT_EQ(answer.wait().size(), kLarge);
}

// Threads that go on calling while their worker shuts down get one sentence, and do not delay it.
TEST_P(RpcLeaveTest, GracefulShutdownEndsWhileThreadsKeepCalling) {
  constexpr int kThreads = 4;
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options(GetParam(), store, rank, 2));
    std::latch calling(kThreads);
    std::atomic<bool> has_shut_down = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&worker, &calling, &has_shut_down, rank] {
        EXPECT_EQ(worker.rpc_sync<int>(1 - rank, "one at leave"), 1);
        calling.count_down();
        const std::string sentence = "'" + worker_name(rank) + "' begins no new calls: its shutdown has begun";
        for (bool last = false; !last;) {
          last = has_shut_down;
          try {
            EXPECT_EQ(worker.rpc_sync<int>(1 - rank, "one at leave"), 1);
            EXPECT_FALSE(last);
          } catch (const Error& error) {
            EXPECT_EQ(error.status(), Status::kCancelled);
            EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
          }
        }
      });
    }
    calling.wait();
    EXPECT_TRUE(worker.shutdown(true, std::chrono::seconds(60)).empty());
    has_shut_down = true;
    for (std::thread& each : threads) each.join();
  });
}

TEST(RpcLeaveLogTest, GracefulShutdownReportsTheCallsThatItWaitsFor) {
  leave_gate = std::make_shared<Gate>();
  ScopedLog log;
  const Store store = Store::inproc();
  on_ranks(2, [&store, &log](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("inproc", store, rank, 2));
    std::vector<rpc::Future<void>> calls;
    for (int i = 0; i < 3 && rank == 0; ++i) calls.push_back(worker.rpc_async(1, "wait for leave"));
    std::thread opener;
    if (rank == 0) {
      opener = std::thread([&log] {
        EXPECT_TRUE(eventually([&log] {
          return log.text().find(
                     "rpc: worker 'worker0' has waited 1 s to shut down; it waits for 3 calls on "
                     "'worker1', the oldest of them 'wait for leave' for ") != std::string::npos;
        })) << log.text();
        leave_gate->open();
      });
    }
    EXPECT_TRUE(worker.shutdown(true, std::chrono::seconds(60)).empty());
    if (opener.joinable()) opener.join();
  });
}

TEST(RpcLeaveLogTest, ManyLeaksAreOneLine) {
  constexpr int kLeaks = 1000;
  ScopedLog log;
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("inproc", store, rank, 2));
    std::vector<rpc::RRef<int>> kept;
    for (int i = 0; i < kLeaks && rank == 0; ++i) kept.push_back(worker.remote<int>(1, "one at leave"));
    const auto leaks = worker.shutdown(true, std::chrono::seconds(60));
    EXPECT_EQ(leaks.size(), rank == 1 ? size_t{kLeaks} : 0U);
  });
  const std::string text = log.text();
  size_t lines = 0;
  for (size_t at = 0; (at = text.find("is still referred to by", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 1U) << text;
  EXPECT_NE(text.find("is still referred to by 'worker0' (and 999 more values); drop all references"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace backplane::test
