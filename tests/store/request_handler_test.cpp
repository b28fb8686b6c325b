// SPDX-License-Identifier: Apache-2.0
#include "store/request_handler.hpp"

#include <utility>

#include "store_fixture.hpp"

namespace backplane::core {
namespace {

class RequestHandlerTest : public testing::Test {
 protected:
  void send(ClientId client, uint64_t id, Operation operation, std::vector<std::string> texts, int64_t number = 0) {
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
  send(1, 1, Operation::kWait, {"a", "b"});
  send(2, 1, Operation::kGet, {"b"});
  EXPECT_EQ(take(), Texts{});
  send(3, 1, Operation::kSet, {"b", "x"});
  EXPECT_EQ(take(), (Texts{"2.1 0 x", "3.1 0 "}));
  send(3, 2, Operation::kSet, {"a", ""});
  EXPECT_EQ(take(), (Texts{"1.1 0 ", "3.2 0 "}));
  EXPECT_EQ(requests_.waiting(), 0U);
}

TEST_F(RequestHandlerTest, AllKeysExistAtTheSameTime) {
  send(1, 1, Operation::kWait, {"a", "b"});
  send(2, 1, Operation::kSet, {"a", ""});
  send(2, 2, Operation::kRemove, {"a"});
  send(2, 3, Operation::kSet, {"b", ""});
  EXPECT_EQ(take(), (Texts{"2.1 0 ", "2.2 0 1", "2.3 0 "}));
  send(2, 4, Operation::kSet, {"a", ""});
  EXPECT_EQ(take(), (Texts{"1.1 0 ", "2.4 0 "}));
}

TEST_F(RequestHandlerTest, CancelRepliesWithTheMissingKeys) {
  send(1, 1, Operation::kWait, {"a", "b", "c"});
  send(2, 1, Operation::kSet, {"b", ""});
  take();
  send(2, 9, Operation::kCancel, {}, 1);  // another client's request of that number: none
  EXPECT_EQ(take(), Texts{});
  send(1, 2, Operation::kCancel, {}, 1);
  EXPECT_EQ(take(), (Texts{fmt::format("1.1 {} 'a' and 'c'", BP_TIMEOUT)}));
  EXPECT_EQ(requests_.waiting(), 0U);
  send(2, 2, Operation::kSet, {"a", ""});
  EXPECT_EQ(take(), (Texts{"2.2 0 "}));
}

TEST_F(RequestHandlerTest, ForgetsClients) {
  for (uint64_t id = 1; id <= 5; ++id) {
    send(1, id, Operation::kGet, {"a"});
    send(2, id, Operation::kGet, {"a"});
  }
  requests_.forget(1);
  EXPECT_EQ(requests_.waiting(), 5U);
  requests_.forget(2);
  requests_.forget(3);
  EXPECT_EQ(requests_.waiting(), 0U);
}

TEST_F(RequestHandlerTest, RefusesBadRequests) {
  send(1, 1, Operation::kSet, {"a"});
  send(1, 2, static_cast<Operation>(77), {});
  send(1, 3, Operation::kGet, {""});
  send(1, 4, Operation::kGet, {"a"});
  send(1, 4, Operation::kGet, {"a"});
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
