// SPDX-License-Identifier: Apache-2.0
//
// What is small has a connection of its own: what may overtake what, and what happens when that breaks.
#include <tensorpipe/tensorpipe.h>
#include <tensorpipe/transport/connection.h>
#include <tensorpipe/transport/context.h>

#include <algorithm>
#include <future>

#include "card.hpp"
#include "message.hpp"
#include "plugins/tensorpipe/support.hpp"
#include "rpc/cut_express.hpp"
#include "support/scoped_log.hpp"

namespace backplane::test {
namespace {

using namespace tensorpipe;  // NOLINT: its parts are what is tested

const core::KeyValues kOverShm = {{"transports", "shm"}};

Card card_of(const Sides& sides, int32_t rank) { return parse_card(sides.store->get(card_key(rank), soon()), rank); }

// Sends in pairs what is large and what is small until that overtakes. How many messages; 0: it never does.
size_t until_small_overtakes_large(const Sides& sides) {
  constexpr uint64_t kLarge = 64 << 20;
  for (size_t sent = 2; sent <= 200; sent += 2) {
    EXPECT_EQ(sides.zero->send(1, 1, kLarge), BP_OK);
    EXPECT_EQ(sides.zero->send(1, 2, 1), BP_OK);
    EXPECT_TRUE(sides.one->has_received(sent));
    if (sides.one->received_sizes()[sent - 1] == kLarge) return sent;
  }
  return 0;
}

TEST(TensorPipeExpressTest, WhatIsSmallOvertakesWhatIsLarge) {
  EXPECT_GT(until_small_overtakes_large(Sides(agent(), kOverShm)), 0U);
}

// Also if nothing went along the pipe since there is an express connection.
TEST(TensorPipeExpressTest, ABreakIsOneLossToEither) {
  Sides sides(agent(), kOverShm);
  ASSERT_EQ(sides.zero->send(1, 1, 0), BP_OK);  // which has the pipe made, and goes along it
  ASSERT_TRUE(sides.one->has_received(1));
  size_t sent = 1;
  for (; sent < 1000; ++sent) {
    ASSERT_EQ(sides.zero->send(1, sent, 1), BP_OK);
    ASSERT_TRUE(sides.one->has_received(sent + 1));
  }
  EXPECT_EQ(cut_express(sides.store->get(card_key(1), soon())), 1);
  EXPECT_TRUE(sides.zero->hears_of_the_loss_of(1));
  EXPECT_TRUE(sides.one->hears_of_the_loss_of(0));
  // Along a new pipe, whose number is told as lost once that ends.
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(sides.zero->send(1, 1, 1), BP_OK);
    ASSERT_TRUE(sides.one->has_received(++sent));
  }
  EXPECT_EQ(sides.zero->losses_of(1), 1U);
  EXPECT_EQ(sides.one->losses_of(0), 1U);
}

// What is sent without an id may be a goodbye, with which all that is still on its way ends.
TEST(TensorPipeExpressTest, GoodbyesOvertakeNothing) {
  constexpr size_t kRounds = 300;
  constexpr size_t kMany = 50;
  Sides sides(agent(), kOverShm);
  std::vector<uint64_t> expected;
  for (size_t round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kMany; ++i) sides.zero->send(1, 1, 1);
    sides.zero->send(1, 0, 2);
    // No word after it before it was confirmed: that may be delivered ahead of it.
    ASSERT_TRUE(sides.one->has_received((round + 1) * (kMany + 1)));
    expected.insert(expected.end(), kMany, 1);
    expected.push_back(2);
  }
  EXPECT_TRUE(sides.one->received_sizes() == expected);
}

TEST(TensorPipeExpressTest, AreDoneWithoutWhereNobodyListens) {
  Sides sides(agent(), kOverShm);
  Card card = card_of(sides, 1);
  card.express = "backplane-nobody-listens-here";
  sides.store->set(card_key(1), format_card(card), soon());
  for (uint64_t id = 1; id <= 1000; ++id) {
    ASSERT_EQ(sides.zero->send(1, id, 1), BP_OK);
    ASSERT_TRUE(sides.one->has_received(id));
  }
  EXPECT_EQ(sides.zero->losses_of(1), 0U);
}

TEST(TensorPipeExpressTest, WorkersThatOfferNoneAreReached) {
  Sides sides(agent(), kOverShm);
  Card card = card_of(sides, 1);
  card.express.clear();
  sides.store->set(card_key(1), format_card(card), soon());
  for (uint64_t id = 1; id <= 100; ++id) ASSERT_EQ(sides.zero->send(1, id, 1), BP_OK);
  EXPECT_TRUE(sides.one->has_received(100));
  EXPECT_EQ(sides.zero->losses_of(1), 0U);
}

// Somebody who speaks with worker 1 as if he were worker 0.
class Forger {
 public:
  explicit Forger(const Card& card) : card_(card) {
    context_->registerTransport(0, "shm", transport_);
    context_->registerChannel(0, "basic", ::tensorpipe::channel::basic::create());
  }
  ~Forger() {
    context_->close();
    context_->join();
  }
  Forger(const Forger&) = delete;
  Forger& operator=(const Forger&) = delete;

  std::shared_ptr<::tensorpipe::Pipe> pipe() const { return context_->connect(card_.shm); }
  std::shared_ptr<::tensorpipe::transport::Connection> express() const { return transport_->connect(card_.express); }

  // A message with this payload; a goodbye if it has none.
  ::tensorpipe::Message message(const std::string& payload, const Before& before) const {
    const bp_rpc_message plain = {
        sizeof(plain), 0, payload.empty() ? 0U : 1U, payload.data(), payload.size(), nullptr, nullptr, nullptr};
    return to_tensorpipe(sdk::RpcMessage(plain), card_.token, 0, nullptr, before);
  }
  void write(::tensorpipe::transport::Connection* express, std::string bytes) const {
    const auto kept = std::make_shared<std::string>(std::move(bytes));
    express->write(kept->data(), kept->size(), [kept](const ::tensorpipe::Error&) {});
  }

 private:
  const Card card_;
  const std::shared_ptr<::tensorpipe::transport::Context> transport_ = ::tensorpipe::transport::shm::create();
  const std::shared_ptr<::tensorpipe::Context> context_ = std::make_shared<::tensorpipe::Context>();
};

// A goodbye that says that two messages went along an express connection before it.
class EarlyGoodbyeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    pipe_->write(forger_.message("", {7, 2}), [](const ::tensorpipe::Error&) {});
    pipe_->write(forger_.message("behind", {7, 2}), [](const ::tensorpipe::Error&) {});
    ASSERT_TRUE(sides_.one->has_received(1));  // so the goodbye has come before it, and waits
    EXPECT_EQ(sides_.one->received_payloads(), std::vector<uint64_t>({6}));
    forger_.write(express_.get(), forger_.message("x", {7, 1}).metadata);
    ASSERT_TRUE(sides_.one->has_received(2));
    EXPECT_EQ(sides_.one->received_payloads(), std::vector<uint64_t>({6, 1}));
  }

  Sides sides_{agent(), kOverShm};
  const Forger forger_{card_of(sides_, 1)};
  const std::shared_ptr<::tensorpipe::Pipe> pipe_ = forger_.pipe();
  const std::shared_ptr<::tensorpipe::transport::Connection> express_ = forger_.express();
};

TEST_F(EarlyGoodbyeTest, WaitsForWhatWasSentBeforeIt) {
  forger_.write(express_.get(), forger_.message("xy", {7, 2}).metadata);
  EXPECT_TRUE(sides_.one->has_received(4));
  EXPECT_EQ(sides_.one->received_payloads(), std::vector<uint64_t>({6, 1, 2, 0}));
}

TEST_F(EarlyGoodbyeTest, WaitsNoLongerThanTheExpressConnection) {
  express_->close();
  EXPECT_TRUE(sides_.one->has_received(3));
  EXPECT_EQ(sides_.one->received_payloads(), std::vector<uint64_t>({6, 1, 0}));
  EXPECT_TRUE(sides_.one->hears_of_the_loss_of(0));
}

TEST_F(EarlyGoodbyeTest, WaitsNoLongerThanItsPipe) {
  pipe_->close();
  EXPECT_TRUE(sides_.one->has_received(3));
  EXPECT_TRUE(sides_.one->hears_of_the_loss_of(0));
}

TEST_F(EarlyGoodbyeTest, WaitsNoLongerThanUntilTheNextConnection) {
  const auto next = forger_.express();
  forger_.write(next.get(), forger_.message("abc", {8, 1}).metadata);
  EXPECT_TRUE(sides_.one->has_received(4));
  EXPECT_EQ(sides_.one->received_payloads(), std::vector<uint64_t>({6, 1, 3, 0}));
}

// A loss is told once of a pipe and the connection beside it, whichever ends first.
TEST_F(EarlyGoodbyeTest, IsLostOnceWithBoth) {
  express_->close();
  EXPECT_TRUE(sides_.one->hears_of_the_loss_of(0));
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
  // What comes along another pipe is read once all of that is done.
  const auto other = forger_.pipe();
  other->write(forger_.message("later", {}), [](const ::tensorpipe::Error&) {});
  EXPECT_TRUE(sides_.one->has_received(4));
  EXPECT_EQ(sides_.one->losses_of(0), 1U);
}

TEST(TensorPipeExpressTest, WhatMakesNoSenseEndsItAlone) {
  Sides sides(agent(), kOverShm);
  ScopedLog log;
  const Forger forger(card_of(sides, 1));
  const auto ends = [&forger](std::string bytes) {
    const auto express = forger.express();
    std::promise<bool> ended;
    express->read([](const ::tensorpipe::Error&, const void*, size_t) {});  // a greeting
    express->read([&ended](const ::tensorpipe::Error& error, const void*, size_t) { ended.set_value(bool(error)); });
    forger.write(express.get(), std::move(bytes));
    std::future<bool> end = ended.get_future();
    return end.wait_for(std::chrono::seconds(20)) == std::future_status::ready && end.get();
  };
  std::string other_token = forger.message("x", {1, 1}).metadata;
  ++other_token[0];
  EXPECT_TRUE(ends("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(ends(other_token));
  EXPECT_EQ(sides.one->losses_of(0), 0U);                   // nothing proves that they were its
  EXPECT_TRUE(ends(forger.message("x", {0, 0}).metadata));  // they belong to a pipe
  EXPECT_TRUE(sides.one->hears_of_the_loss_of(0, 1));
  EXPECT_TRUE(ends(forger.message("", {2, 1}).metadata));
  EXPECT_TRUE(sides.one->hears_of_the_loss_of(0, 2));
  EXPECT_NE(log.text().find("a message of rank 0 was refused: it belongs to its pipe"), std::string::npos);
  ASSERT_EQ(sides.zero->send(1, 1, 1), BP_OK);
  EXPECT_TRUE(sides.one->has_received(1));
}

}  // namespace
}  // namespace backplane::test
