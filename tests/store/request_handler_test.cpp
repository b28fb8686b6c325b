// SPDX-License-Identifier: Apache-2.0
#include "store/request_handler.hpp"

#include <utility>

#include "store_fixture.hpp"

namespace backplane::core {
namespace {

class RequestHandlerTest : public testing::Test {
 protected:
  void send(ClientId client, uint64_t id, RequestKind operation, std::vector<std::string> texts, int64_t number = 0) {
    requests_.handle(client, StoreRequest{id, operation, number, std::move(texts)});
  }
  // The answers since the last call, as "client.request status payload".
  std::vector<std::string> take() {
    std::vector<std::string> texts;
    for (const auto& answer : answers_) {
      texts.push_back(fmt::format("{}.{} {} {}", answer.client, answer.request, answer.status,
                                  answer.payload == nullptr ? "" : *answer.payload));
    }
    answers_.clear();
    return texts;
  }
  using Texts = std::vector<std::string>;

  std::vector<OutgoingReply> answers_;
  RequestHandler requests_{[this](OutgoingReply answer) { answers_.push_back(std::move(answer)); }};
};

TEST_F(RequestHandlerTest, RepliesToWaitersWhenAllKeysExist) {
  send(1, 1, RequestKind::kWait, {"a", "b"});
  send(2, 1, RequestKind::kGet, {"b"});
  EXPECT_EQ(take(), Texts{});
  send(3, 1, RequestKind::kSet, {"b", "x"});
  EXPECT_EQ(take(), (Texts{"2.1 0 x", "3.1 0 "}));
  send(3, 2, RequestKind::kSet, {"a", ""});
  EXPECT_EQ(take(), (Texts{"1.1 0 ", "3.2 0 "}));
  EXPECT_EQ(requests_.waiting(), 0U);
}

TEST_F(RequestHandlerTest, AllKeysExistAtTheSameTime) {
  send(1, 1, RequestKind::kWait, {"a", "b"});
  send(2, 1, RequestKind::kSet, {"a", ""});
  send(2, 2, RequestKind::kRemove, {"a"});
  send(2, 3, RequestKind::kSet, {"b", ""});
  EXPECT_EQ(take(), (Texts{"2.1 0 ", "2.2 0 1", "2.3 0 "}));
  send(2, 4, RequestKind::kSet, {"a", ""});
  EXPECT_EQ(take(), (Texts{"1.1 0 ", "2.4 0 "}));
}

TEST_F(RequestHandlerTest, CancelRepliesWithTheMissingKeys) {
  send(1, 1, RequestKind::kWait, {"a", "b", "c"});
  send(2, 1, RequestKind::kSet, {"b", ""});
  take();
  send(2, 9, RequestKind::kCancel, {}, 1);  // no request of this client has that number
  EXPECT_EQ(take(), Texts{});
  send(1, 2, RequestKind::kCancel, {}, 1);
  EXPECT_EQ(take(), (Texts{fmt::format("1.1 {} 'a' and 'c'", BP_TIMEOUT)}));
  EXPECT_EQ(requests_.waiting(), 0U);
  send(2, 2, RequestKind::kSet, {"a", ""});
  EXPECT_EQ(take(), (Texts{"2.2 0 "}));
}

TEST_F(RequestHandlerTest, ForgetsClients) {
  for (uint64_t id = 1; id <= 5; ++id) {
    send(1, id, RequestKind::kGet, {"a"});
    send(2, id, RequestKind::kGet, {"a"});
  }
  requests_.forget(1);
  EXPECT_EQ(requests_.waiting(), 5U);
  requests_.forget(2);
  requests_.forget(3);
  EXPECT_EQ(requests_.waiting(), 0U);
}

TEST(WaitBudget, GuaranteesEachClientAShare) {
  WaitBudget budget(100, 1000);
  EXPECT_TRUE(budget.take(1, 1100));
  EXPECT_FALSE(budget.take(1, 1));
  EXPECT_TRUE(budget.take(2, 100));
  EXPECT_FALSE(budget.take(2, 1));
  EXPECT_FALSE(budget.take(3, 101));
  budget.give_back(1, 600);
  EXPECT_TRUE(budget.take(3, 700));
  budget.give_back(1, 500);
  budget.give_back(3, 700);
  EXPECT_TRUE(budget.take(4, 1100));
}

TEST(RequestHandlerLimit, BoundsTheMemoryOfWaitingRequests) {
  size_t replies = 0;
  size_t refused = 0;
  const auto count = [&replies, &refused](const OutgoingReply& reply) {
    ++(reply.status == BP_OK ? replies : refused);
  };
  RequestHandler requests(count, WaitBudget(1000, 20'000));
  for (uint64_t id = 1; id <= 100; ++id) requests.handle(1, {id, RequestKind::kGet, 0, {"never"}});
  EXPECT_GT(refused, 20U);
  EXPECT_EQ(requests.waiting(), 100 - refused);
  const size_t before = refused;
  requests.handle(1, {101, RequestKind::kSet, 0, {"k", "v"}});
  requests.handle(1, {102, RequestKind::kGet, 0, {"k"}});  // the key exists: does not wait
  EXPECT_EQ(replies, 2U);
  requests.handle(2, {1, RequestKind::kGet, 0, {"never"}});  // from its share
  EXPECT_EQ(refused, before);
  requests.handle(2, {2, RequestKind::kWait, 0, std::vector<std::string>(100, "a long list of keys")});
  EXPECT_EQ(refused, before + 1);
  requests.forget(1);
  requests.handle(2, {3, RequestKind::kWait, 0, std::vector<std::string>(100, "a long list of keys")});
  EXPECT_EQ(refused, before + 1);
}

TEST_F(RequestHandlerTest, RefusesBadRequests) {
  send(1, 1, RequestKind::kSet, {"a"});
  send(1, 2, static_cast<RequestKind>(77), {});
  send(1, 3, RequestKind::kGet, {""});
  send(1, 4, RequestKind::kGet, {"a"});
  send(1, 4, RequestKind::kGet, {"a"});
  const auto texts = take();
  ASSERT_EQ(texts.size(), 4U);
  const std::pair<const char*, const char*> expected[] = {{"1.1", "a request has 1 arguments instead of 2"},
                                                          {"1.2", "operation 77 is unknown to this store"},
                                                          {"1.3", "must not be empty"},
                                                          {"1.4", "request 4 of this client is already waiting"}};
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto& [which, why] = expected[i];
    EXPECT_TRUE(texts[i].starts_with(fmt::format("{} {} ", which, BP_INVALID))) << texts[i];
    EXPECT_NE(texts[i].find(why), std::string::npos) << texts[i];
  }
}

}  // namespace
}  // namespace backplane::core
