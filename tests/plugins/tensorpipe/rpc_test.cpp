// SPDX-License-Identifier: Apache-2.0
//
// The agent alone, over a store that fails or stalls.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <numeric>

#include "backplane/base/descriptor.hpp"
#include "endpoint.hpp"
#include "plugins/tensorpipe/support.hpp"
#include "support/descriptor_limit.hpp"
#include "support/eventually.hpp"

namespace backplane::test {
namespace {

using core::Deadline;

// A store that fails the next values that are set.
class UnreliableStore final : public core::Store {
 public:
  explicit UnreliableStore(std::shared_ptr<core::Store> inner) : inner_(std::move(inner)) {}

  void refuse(int count) { refused_ = count; }
  bool has_refused() const { return refused_ <= 0; }
  // From now on get blocks until it is interrupted, regardless of its deadline.
  void stall_gets() { gets_stall_ = true; }
  bool is_stalled() const { return asked_; }
  // Called before each get. Set before anything is sent.
  void watch(std::function<void(std::string_view key)> watch) { watch_ = std::move(watch); }

  void set(std::string_view key, std::string_view value, Deadline deadline) override {
    if (refused_ > 0 && refused_-- > 0) throw core::Error(BP_TIMEOUT, "the store does not answer");
    inner_->set(key, value, deadline);
  }
  std::string get(std::string_view key, Deadline deadline) override {
    if (watch_) watch_(key);
    if (!gets_stall_) return inner_->get(key, deadline);
    asked_ = true;
    return inner_->get(key, Deadline::never());
  }
  int64_t add(std::string_view key, int64_t delta, Deadline deadline) override {
    return inner_->add(key, delta, deadline);
  }
  void wait(const std::vector<std::string>& keys, Deadline deadline) override { inner_->wait(keys, deadline); }
  bool check(const std::vector<std::string>& keys, Deadline deadline) override { return inner_->check(keys, deadline); }
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Deadline deadline) override {
    return inner_->compare_set(key, expected, desired, deadline);
  }
  bool remove(std::string_view key, Deadline deadline) override { return inner_->remove(key, deadline); }
  int64_t num_keys(Deadline deadline) override { return inner_->num_keys(deadline); }
  std::unique_ptr<core::Membership> enroll(const core::Enrolment& enrolment,
                                           std::function<void(const core::Loss&)> on_loss, Deadline deadline) override {
    return inner_->enroll(enrolment, std::move(on_loss), deadline);
  }
  void interrupt(int32_t status, const std::string& why) override { inner_->interrupt(status, why); }
  bool interrupted() const override { return inner_->interrupted(); }
  std::shared_ptr<core::Store> view() override { return inner_->view(); }
  std::string describe() const override { return inner_->describe(); }

 private:
  const std::shared_ptr<core::Store> inner_;
  std::function<void(std::string_view key)> watch_;
  std::atomic<int> refused_ = 0;
  std::atomic<bool> gets_stall_ = false;
  std::atomic<bool> asked_ = false;
};

// Connects to the port of the worker with this endpoint.
base::Descriptor dial(const std::string& endpoint) {
  const size_t colon = endpoint.find(':', endpoint.find("uv://") + 5);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(colon + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  base::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

TEST(TensorPipeAgentTest, SendDoesNotWaitForTheStore) {
  TestAgents sides(agent(), {});
  const std::string endpoint = sides.store->get("worker/1", soon());
  sides.store->remove("worker/1", soon());
  ASSERT_EQ(sides.zero->send(1, 1, 100000), BP_OK);  // while its endpoint is missing
  sides.store->set("worker/1", endpoint, soon());
  EXPECT_TRUE(sides.one->has_received(1));
}

// A goodbye ends the worker's pipes and memory, so it must not overtake.
TEST(TensorPipeAgentTest, GoodbyesOvertakeNothing) {
  TestAgents sides(agent(), {});
  sides.zero->send(1, 1, 0);
  ASSERT_TRUE(sides.one->has_received(1));  // the pipe is open
  for (int i = 0; i < 3; ++i) {
    sides.zero->send(1, 2, 4 << 20);
    sides.zero->send(1, 0, 0);
  }
  EXPECT_TRUE(sides.one->has_received(7));
  EXPECT_EQ(sides.one->received_sizes(), std::vector<uint64_t>({0, 4 << 20, 0, 4 << 20, 0, 4 << 20, 0}));
}

// A backlog is written while more is sent. A pipe keeps the order; with an express connection small messages may
// overtake.
class TensorPipeBacklogTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, TensorPipeBacklogTest, ::testing::Values("uv", "shm"),
                         [](const auto& info) { return std::string(info.param); });
TEST_P(TensorPipeBacklogTest, KeepsOrderWhileConnecting) {
  TestAgents sides(agent(), {{"transports", GetParam()}});
  const std::string endpoint = sides.store->get("worker/1", soon());
  sides.store->remove("worker/1", soon());
  std::vector<uint64_t> sizes;
  const auto send = [&sizes, &sides] {
    sizes.push_back(sizes.size() % 100);
    sides.zero->send(1, sizes.size(), sizes.back());
  };
  for (int i = 0; i < 3000; ++i) send();
  sides.store->set("worker/1", endpoint, soon());
  for (int i = 0; i < 10000 && sides.one->received_sizes().empty(); ++i) send();
  ASSERT_TRUE(sides.one->has_received(sizes.size()));
  std::vector<uint64_t> received = sides.one->received_sizes();
  if (GetParam() == std::string("shm")) {
    std::sort(received.begin(), received.end());
    std::sort(sizes.begin(), sizes.end());
  }
  EXPECT_TRUE(received == sizes);
}

TEST(TensorPipeAgentTest, NamesAWorkerOfAnotherVersion) {
  const auto store = core::make_inproc_store();
  tensorpipe::Endpoint old;
  old.host = "elsewhere";
  old.shm = "shm://nowhere";
  old.devices.name = "old";
  old.version = 1;
  store->set("place/1", "elsewhere", soon());
  store->set("worker/1", tensorpipe::format_endpoint(old), soon());
  std::string text;
  try {
    TestAgent(agent(), store, 0);
  } catch (const std::runtime_error& e) {
    text = e.what();
  }
  EXPECT_EQ(text,
            "worker old uses version 1 of the tensorpipe protocol, worker test version 3; run the same "
            "version of Backplane on all workers");
}

constexpr uint32_t kNoSuchMemory = 99;  // not supported by the agent

// One thread writes backlogs and opens pipes. Failures to write are reported meanwhile.
TEST(TensorPipeAgentTest, WritingABacklogDoesNotBlockOthers) {
  constexpr uint64_t kMany = 2000;
  std::vector<uint64_t> written;  // by that thread, which also connects
  size_t written_when_2_came = 0;
  const auto store = std::make_shared<UnreliableStore>(core::make_inproc_store());
  std::array<std::unique_ptr<TestAgent>, 3> sides;
  std::vector<std::thread> starting;
  for (int32_t rank = 0; rank < 3; ++rank) {
    starting.emplace_back([&sides, &store, rank] {
      sides[static_cast<size_t>(rank)] = std::make_unique<TestAgent>(agent(), store, RankInWorld(rank, 3));
    });
  }
  for (std::thread& each : starting) each.join();
  sides[0]->watch_failures([&](uint64_t id) {
    if (written.empty()) sides[0]->send(2, 1, 0);
    written.push_back(id);
  });
  store->watch([&](std::string_view key) {
    if (key == "worker/2") written_when_2_came = written.size();
  });
  const std::string endpoint = store->get("worker/1", soon());
  store->remove("worker/1", soon());
  for (uint64_t id = 1; id <= kMany; ++id) {
    ASSERT_EQ(sides[0]->send(1, id, 1, BP_NO_TIMEOUT, kNoSuchMemory), BP_OK);
  }
  store->set("worker/1", endpoint, soon());
  EXPECT_TRUE(sides[2]->has_received(1));
  EXPECT_NE(sides[0]->failure(kMany), "");
  EXPECT_GT(written_when_2_came, 0U);
  EXPECT_LT(written_when_2_came, kMany);
  std::vector<uint64_t> all(kMany);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_TRUE(written == all);
}

TEST(TensorPipeAgentTest, AbortDoesNotWaitForTheStore) {
  const auto store = std::make_shared<UnreliableStore>(core::make_inproc_store());
  std::unique_ptr<TestAgent> one;
  std::thread other([&] { one = std::make_unique<TestAgent>(agent(), store, 1); });
  auto zero = std::make_unique<TestAgent>(agent(), store, 0);
  other.join();
  const std::string endpoint = store->get("worker/1", soon());
  store->remove("worker/1", soon());
  store->stall_gets();
  ASSERT_EQ(zero->send(1, 1, 0), BP_OK);
  EXPECT_TRUE(eventually([&store] { return store->is_stalled(); })) << "the store was not asked for the endpoint";
  const auto ending = std::async(std::launch::async, [&zero] {
    zero->abort();
    zero.reset();
  });
  const bool has_ended = in_time(ending);
  EXPECT_TRUE(has_ended) << "the agent waits for a store that does not answer";
  if (!has_ended) store->set("worker/1", endpoint, soon());  // lets the test end
}

// A quarter of the descriptors may be idle, which is less than these connections.
TEST(TensorPipeAgentTest, ClosesIdleConnections) {
  const DescriptorLimit limit(256);
  TestAgents sides(agent(), {{"transports", "uv"}});
  const std::string endpoint = sides.store->get("worker/1", soon());
  std::vector<base::Descriptor> idle;
  for (int i = 0; i < 70; ++i) idle.push_back(dial(endpoint));
  for (const base::Descriptor& client : idle) {
    pollfd closed = {client.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&closed, 1, 60'000), 1) << "idle connections stay open";
  }
  EXPECT_TRUE(eventually([&] { return sides.store->get("worker/1", soon()) != endpoint; }));
  ASSERT_EQ(sides.zero->send(1, 1, 100000), BP_OK);
  EXPECT_TRUE(sides.one->has_received(1));
}

TEST(TensorPipeAgentTest, ListensAgainAfterAStoreError) {
  const core::KeyValues options = {{"transports", "uv"}};
  const auto store = std::make_shared<UnreliableStore>(core::make_inproc_store());
  std::unique_ptr<TestAgent> one;
  std::thread other([&] { one = std::make_unique<TestAgent>(agent(), store, 1, options); });
  TestAgent zero(agent(), store, 0, options);
  other.join();
  const std::string express_position = store->get("worker/1", soon());
  store->refuse(1);
  dial(express_position);  // and close during the handshake
  const Deadline limit = soon();
  while (store->get("worker/1", limit) == express_position && !limit.passed()) std::this_thread::yield();
  EXPECT_FALSE(limit.passed()) << "it does not listen again";
  EXPECT_TRUE(store->has_refused());
  ASSERT_EQ(zero.send(1, 1, 100000), BP_OK);
  EXPECT_TRUE(one->has_received(1));
}

}  // namespace
}  // namespace backplane::test
