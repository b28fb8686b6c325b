// SPDX-License-Identifier: Apache-2.0
#include "store/wire.hpp"

#include <random>

#include "store_fixture.hpp"

namespace backplane::core {
namespace {

// Checks the size in front and takes it off.
std::string body_of(const std::string& frame) {
  EXPECT_EQ(decode_size(frame.data()), frame.size() - kSizeBytes);
  return frame.substr(kSizeBytes);
}

TEST(Wire, FramesComeBackAsTheyWere) {
  const auto hello = decode_hello(body_of(encode(Hello{kProtocolVersion, 3, 8, "job"})));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->rank, 3);
  EXPECT_EQ(hello->world_size, 8);
  EXPECT_EQ(hello->job_id, "job");
  const auto welcome = decode_welcome(body_of(encode(Welcome{BP_INVALID, "no"})));
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->status, BP_INVALID);
  EXPECT_EQ(welcome->text, "no");
  const auto request = decode_request(body_of(encode(Request{7, Operation::kAdd, -5, {"a", std::string(1, '\0')}})));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->id, 7U);
  EXPECT_EQ(request->number, -5);
  EXPECT_EQ(request->texts, (std::vector<std::string>{"a", std::string(1, '\0')}));
  const auto reply = decode_reply(body_of(encode_reply_head(9, BP_TIMEOUT, 3) + "abc"));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, 9U);
  EXPECT_EQ(reply->payload, "abc");
}

TEST(Wire, AnotherVersionsHelloStillHasItsVersion) {
  const auto hello = decode_hello(body_of(encode(Hello{99, 0, 1, ""})) + "fields of the future");
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->version, 99U);
}

TEST(Wire, CutFramesAreRefused) {
  const std::string request = body_of(encode(Request{7, Operation::kSet, 0, {"key", "value"}}));
  for (size_t size = 0; size < request.size(); ++size) EXPECT_FALSE(decode_request(request.substr(0, size)));
  EXPECT_FALSE(decode_request(request + "x"));
  const std::string hello = body_of(encode(Hello{kProtocolVersion, 0, 1, "job"}));
  for (size_t size = 0; size < hello.size(); ++size) EXPECT_FALSE(decode_hello(hello.substr(0, size)));
}

TEST(Wire, RandomBytesNeverReadBeyondTheEnd) {
  std::mt19937 random(17);  // the sanitizers watch
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 64, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    decode_request(bytes);
    decode_reply(bytes);
    decode_hello(std::string(kMagic) + bytes);
    decode_welcome(std::string(kMagic) + bytes);
  }
}

}  // namespace
}  // namespace backplane::core
