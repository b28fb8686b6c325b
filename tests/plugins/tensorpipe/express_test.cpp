// SPDX-License-Identifier: Apache-2.0
//
// Express connections: order of messages, and broken connections.
#include <tensorpipe/tensorpipe.h>
#include <tensorpipe/transport/connection.h>
#include <tensorpipe/transport/context.h>

#include <algorithm>
#include <future>

#include "endpoint.hpp"
#include "plugins/tensorpipe/support.hpp"
#include "rpc/cut_express.hpp"
#include "support/scoped_log.hpp"
#include "wire.hpp"

namespace backplane::test {
namespace {

using namespace tensorpipe;  // NOLINT: tests its internals

const core::KeyValues kOverShm = {{"transports", "shm"}};

Endpoint endpoint_of(const TestAgents& sides, int32_t rank) {
  return parse_endpoint(sides.store->get(endpoint_key(rank), soon()), rank);
}

// Sends pairs of a large and a small message until the small one overtakes. Returns the number of messages; 0: it never
// does.
size_t count_until_small_overtakes(const TestAgents& sides) {
  constexpr uint64_t kLarge = 64 << 20;
  for (size_t sent = 2; sent <= 200; sent += 2) {
    EXPECT_EQ(sides.zero->send(1, 1, kLarge), BP_OK);
    EXPECT_EQ(sides.zero->send(1, 2, 1), BP_OK);
    EXPECT_TRUE(sides.one->has_received(sent));
    if (sides.one->received_sizes()[sent - 1] == kLarge) return sent;
  }
  return 0;
}

TEST(TensorPipeExpressTest, SmallOvertakesLarge) {
  EXPECT_GT(count_until_small_overtakes(TestAgents(agent(), kOverShm)), 0U);
}

// Nothing is sent on the pipe after the express connection has opened.
TEST(TensorPipeExpressTest, ABreakIsReportedOnceOnEachSide) {
  TestAgents sides(agent(), kOverShm);
  ASSERT_EQ(sides.zero->send(1, 1, 0), BP_OK);  // opens the pipe and uses it
  ASSERT_TRUE(sides.one->has_received(1));
  size_t sent = 1;
  for (; sent < 1000; ++sent) {
    ASSERT_EQ(sides.zero->send(1, sent, 1), BP_OK);
    ASSERT_TRUE(sides.one->has_received(sent + 1));
  }
  EXPECT_EQ(cut_express(sides.store->get(endpoint_key(1), soon())), 1);
  EXPECT_TRUE(sides.zero->reports_loss_of(1));
  EXPECT_TRUE(sides.one->reports_loss_of(0));
  // On a new pipe, whose number is reported as lost when it ends.
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(sides.zero->send(1, 1, 1), BP_OK);
    ASSERT_TRUE(sides.one->has_received(++sent));
  }
  EXPECT_EQ(sides.zero->losses_of(1), 1U);
  EXPECT_EQ(sides.one->losses_of(0), 1U);
}

// A message without an id may be a goodbye.
TEST(TensorPipeExpressTest, GoodbyesOvertakeNothing) {
  constexpr size_t kRounds = 300;
  constexpr size_t kMany = 50;
  TestAgents sides(agent(), kOverShm);
  std::vector<uint64_t> expected;
  for (size_t round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kMany; ++i) sides.zero->send(1, 1, 1);
    sides.zero->send(1, 0, 2);
    // Later messages may be delivered before an unconfirmed goodbye, so none is sent.
    ASSERT_TRUE(sides.one->has_received((round + 1) * (kMany + 1)));
    expected.insert(expected.end(), kMany, 1);
    expected.push_back(2);
  }
  EXPECT_TRUE(sides.one->received_sizes() == expected);
}

TEST(TensorPipeExpressTest, FallsBackToThePipeWithoutListener) {
  TestAgents sides(agent(), kOverShm);
  Endpoint endpoint = endpoint_of(sides, 1);
  endpoint.express = "backplane-no-listener";
  sides.store->set(endpoint_key(1), format_endpoint(endpoint), soon());
  for (uint64_t id = 1; id <= 1000; ++id) {
    ASSERT_EQ(sides.zero->send(1, id, 1), BP_OK);
    ASSERT_TRUE(sides.one->has_received(id));
  }
  EXPECT_EQ(sides.zero->losses_of(1), 0U);
}

TEST(TensorPipeExpressTest, FallsBackToThePipeIfNotOffered) {
  TestAgents sides(agent(), kOverShm);
  Endpoint endpoint = endpoint_of(sides, 1);
  endpoint.express.clear();
  sides.store->set(endpoint_key(1), format_endpoint(endpoint), soon());
  for (uint64_t id = 1; id <= 100; ++id) ASSERT_EQ(sides.zero->send(1, id, 1), BP_OK);
  EXPECT_TRUE(sides.one->has_received(100));
  EXPECT_EQ(sides.zero->losses_of(1), 0U);
}

// Impersonates worker 0 towards worker 1.
class Forger {
 public:
  explicit Forger(const Endpoint& endpoint) : endpoint_(endpoint) {
    context_->registerTransport(0, "shm", transport_);
    context_->registerChannel(0, "basic", ::tensorpipe::channel::basic::create());
  }
  ~Forger() {
    context_->close();
    context_->join();
  }
  Forger(const Forger&) = delete;
  Forger& operator=(const Forger&) = delete;

  std::shared_ptr<::tensorpipe::Pipe> pipe() const { return context_->connect(endpoint_.shm); }
  std::shared_ptr<::tensorpipe::transport::Connection> express() const {
    return transport_->connect(endpoint_.express);
  }

  // A message with this payload; an empty payload makes it a goodbye.
  ::tensorpipe::Message message(const std::string& payload, const ExpressPosition& express_position) const {
    const bp_rpc_message plain = {
        sizeof(plain), 0, payload.empty() ? 0U : 1U, payload.data(), payload.size(), nullptr, nullptr, nullptr};
    return to_tensorpipe(sdk::RpcMessage(plain), endpoint_.token, 0, nullptr, express_position);
  }
  void write(::tensorpipe::transport::Connection* express, std::string bytes) const {
    const auto outgoing = std::make_shared<std::string>(std::move(bytes));
    express->write(outgoing->data(), outgoing->size(), [outgoing](const ::tensorpipe::Error&) {});
  }

 private:
  const Endpoint endpoint_;
  const std::shared_ptr<::tensorpipe::transport::Context> transport_ = ::tensorpipe::transport::shm::create();
  const std::shared_ptr<::tensorpipe::Context> context_ = std::make_shared<::tensorpipe::Context>();
};

// A goodbye after two messages on an express connection.
class DeferredGoodbyeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    pipe_->write(forger_.message("", {7, 2}), [](const ::tensorpipe::Error&) {});
    pipe_->write(forger_.message("behind", {7, 2}), [](const ::tensorpipe::Error&) {});
    ASSERT_TRUE(sides_.one->has_received(1));  // so the goodbye has arrived and is deferred
    EXPECT_EQ(sides_.one->received_payloads(), std::vector<uint64_t>({6}));
    forger_.write(express_.get(), forger_.message("x", {7, 1}).metadata);
    ASSERT_TRUE(sides_.one->has_received(2));
    EXPECT_EQ(sides_.one->received_payloads(), std::vector<uint64_t>({6, 1}));
  }

  TestAgents sides_{agent(), kOverShm};
  const Forger forger_{endpoint_of(sides_, 1)};
  const std::shared_ptr<::tensorpipe::Pipe> pipe_ = forger_.pipe();
  const std::shared_ptr<::tensorpipe::transport::Connection> express_ = forger_.express();
};

TEST_F(DeferredGoodbyeTest, WaitsForEarlierMessages) {
  forger_.write(express_.get(), forger_.message("xy", {7, 2}).metadata);
  EXPECT_TRUE(sides_.one->has_received(4));
  EXPECT_EQ(sides_.one->received_payloads(), std::vector<uint64_t>({6, 1, 2, 0}));
}

TEST_F(DeferredGoodbyeTest, EndsWithTheExpressConnection) {
  express_->close();
  EXPECT_TRUE(sides_.one->has_received(3));
  EXPECT_EQ(sides_.one->received_payloads(), std::vector<uint64_t>({6, 1, 0}));
  EXPECT_TRUE(sides_.one->reports_loss_of(0));
}

TEST_F(DeferredGoodbyeTest, EndsWithItsPipe) {
  pipe_->close();
  EXPECT_TRUE(sides_.one->has_received(3));
  EXPECT_TRUE(sides_.one->reports_loss_of(0));
}

TEST_F(DeferredGoodbyeTest, EndsWithTheNextConnection) {
  const auto next = forger_.express();
  forger_.write(next.get(), forger_.message("abc", {8, 1}).metadata);
  EXPECT_TRUE(sides_.one->has_received(4));
  EXPECT_EQ(sides_.one->received_payloads(), std::vector<uint64_t>({6, 1, 3, 0}));
}

// The loss of a pipe and its express connection is reported once, whichever ends first.
TEST_F(DeferredGoodbyeTest, LossIsReportedOnce) {
  express_->close();
  EXPECT_TRUE(sides_.one->reports_loss_of(0));
  EXPECT_TRUE(sides_.one->has_received(3));
  std::promise<bool> ended;
  pipe_->readDescriptor([&](const ::tensorpipe::Error&, const ::tensorpipe::Descriptor&) {  // the goodbye's receipt
    pipe_->read({}, [](const ::tensorpipe::Error&) {});
    pipe_->readDescriptor(
        [&](const ::tensorpipe::Error& error, const ::tensorpipe::Descriptor&) { ended.set_value(bool(error)); });
  });
  ::tensorpipe::Message nonsense = forger_.message("x", {7, 2});
  nonsense.metadata.resize(sizeof(Token) + 4);
  pipe_->write(std::move(nonsense), [](const ::tensorpipe::Error&) {});
  std::future<bool> end = ended.get_future();
  ASSERT_EQ(end.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_TRUE(end.get());
  // Messages on another pipe are read after all of this.
  const auto other = forger_.pipe();
  other->write(forger_.message("later", {}), [](const ::tensorpipe::Error&) {});
  EXPECT_TRUE(sides_.one->has_received(4));
  EXPECT_EQ(sides_.one->losses_of(0), 1U);
}

TEST(TensorPipeExpressTest, MalformedMessageEndsOnlyItsConnection) {
  TestAgents sides(agent(), kOverShm);
  const ScopedLog log;  // of refusals
  const Forger forger(endpoint_of(sides, 1));
  const auto ends = [&forger](std::string bytes) {
    const auto express = forger.express();
    std::promise<bool> ended;
    express->read([](const ::tensorpipe::Error&, const void*, size_t) {});  // the greeting
    express->read([&ended](const ::tensorpipe::Error& error, const void*, size_t) { ended.set_value(bool(error)); });
    forger.write(express.get(), std::move(bytes));
    std::future<bool> end = ended.get_future();
    return end.wait_for(std::chrono::seconds(20)) == std::future_status::ready && end.get();
  };
  std::string other_token = forger.message("x", {1, 1}).metadata;
  ++other_token[0];
  EXPECT_TRUE(ends("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(ends(other_token));
  EXPECT_EQ(sides.one->losses_of(0), 0U);                   // the sender is not authenticated
  EXPECT_TRUE(ends(forger.message("x", {0, 0}).metadata));  // must be sent on a pipe
  EXPECT_TRUE(sides.one->reports_loss_of(0, 1));
  EXPECT_NE(sides.one->loss_of(0).find("it must be sent on a pipe"), std::string::npos) << sides.one->loss_of(0);
  EXPECT_TRUE(ends(forger.message("", {2, 1}).metadata));
  EXPECT_TRUE(sides.one->reports_loss_of(0, 2));
  ASSERT_EQ(sides.zero->send(1, 1, 1), BP_OK);
  EXPECT_TRUE(sides.one->has_received(1));
}

}  // namespace
}  // namespace backplane::test
