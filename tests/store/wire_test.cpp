// SPDX-License-Identifier: Apache-2.0
#include "store/wire.hpp"

#include <random>

#include "store_fixture.hpp"

namespace backplane::core {
namespace {

// Checks the size at the beginning and removes it.
std::string body_of(const std::string& frame) {
  EXPECT_EQ(decode_size(frame.data()), frame.size() - kSizeBytes);
  return frame.substr(kSizeBytes);
}

TEST(Wire, FramesRoundTrip) {
  const auto hello = decode_hello(body_of(encode(Hello{kProtocolVersion, 3, 8, "job"})));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->rank, 3);
  EXPECT_EQ(hello->world_size, 8);
  EXPECT_EQ(hello->job_id, "job");
  const auto refusal = decode_welcome(body_of(encode(Welcome{BP_INVALID, "no", -1, "", {}})));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, BP_INVALID);
  EXPECT_EQ(refusal->text, "no");
  const auto welcome = decode_welcome(body_of(encode(Welcome{BP_OK, "", 2, "host, pid 17", {20'000'000, 90'000'000}})));
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->server_rank, 2);
  EXPECT_EQ(welcome->server_identity, "host, pid 17");
  EXPECT_EQ(welcome->heartbeat.interval_ns, 20'000'000);
  EXPECT_EQ(welcome->heartbeat.limit_ns, 90'000'000);
  const auto request =
      decode_request(body_of(encode(StoreRequest{7, RequestKind::kAdd, -5, {"a", std::string(1, '\0')}})));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->id, 7U);
  EXPECT_EQ(request->number, -5);
  EXPECT_EQ(request->texts, (std::vector<std::string>{"a", std::string(1, '\0')}));
  const auto reply = decode_reply(body_of(encode_reply_head(9, BP_TIMEOUT, 3) + "abc"));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, 9U);
  EXPECT_EQ(reply->payload, "abc");
}

// A push of the server is a reply to no request.
TEST(Wire, PushesAndAbsencesRoundTrip) {
  const auto reply = decode_reply(body_of(encode(Push{Push::Kind::kNotice, "scope/", 3, "rank 3 is lost"})));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, kPushId);
  const auto push = decode_push(reply->payload);
  ASSERT_TRUE(push);
  EXPECT_EQ(push->kind, Push::Kind::kNotice);
  EXPECT_EQ(push->scope, "scope/");
  EXPECT_EQ(push->rank, 3);
  EXPECT_EQ(push->text, "rank 3 is lost");
  const Absences absences = {{1, Absence::kLost}, {4, Absence::kLeft}};
  EXPECT_EQ(decode_absences(encode_absences(absences)), absences);
  EXPECT_EQ(decode_absences(encode_absences({})), Absences());
}

TEST(Wire, PushesAndAbsencesAreReadStrictly) {
  const std::string notice = body_of(encode(Push{Push::Kind::kNotice, "s", 3, "text"})).substr(12);
  ASSERT_TRUE(decode_push(notice));
  for (size_t size = 0; size < notice.size(); ++size) EXPECT_FALSE(decode_push(notice.substr(0, size)));
  EXPECT_FALSE(decode_push(notice + "x"));
  EXPECT_FALSE(decode_push(std::string(1, '\x09')));
  EXPECT_FALSE(decode_push(body_of(encode(Push{Push::Kind::kNotice, "s", -1, "text"})).substr(12)));
  EXPECT_FALSE(
      decode_push(body_of(encode(Push{Push::Kind::kNotice, "s", 1, std::string(kMaxNoticeSize + 1, 'x')})).substr(12)));
  const std::string absences = encode_absences({{1, Absence::kLost}, {4, Absence::kLeft}});
  for (size_t size = 0; size < absences.size(); ++size) EXPECT_FALSE(decode_absences(absences.substr(0, size)));
  EXPECT_FALSE(decode_absences(absences + "x"));
  EXPECT_FALSE(decode_absences(Packer().u32(0x40000000).bytes()));
  EXPECT_FALSE(decode_absences(Packer().u32(1).u32(2).u8(3).bytes()));
  EXPECT_FALSE(decode_absences(Packer().u32(2).u32(2).u8(1).u32(2).u8(1).bytes()));  // twice the same rank
}

TEST(Wire, WelcomesAreReadStrictly) {
  const std::string welcome = body_of(encode(Welcome{BP_OK, "", -1, "host, pid 1", {}}));
  for (size_t size = 0; size < welcome.size(); ++size) EXPECT_FALSE(decode_welcome(welcome.substr(0, size)));
  EXPECT_FALSE(decode_welcome(body_of(encode(Welcome{BP_OK, "", -1, "", {0, 0}}))));  // an interval of 0
  EXPECT_FALSE(decode_welcome(body_of(encode(Welcome{BP_OK, "", -1, "", {1'000'000'000, 1'000'000'000}}))));
  EXPECT_FALSE(decode_welcome(body_of(encode(Welcome{BP_OK, "", -1, std::string(kMaxIdentitySize + 1, 'x'), {}}))));
}

TEST(Wire, AHelloOfAnotherVersionHasItsVersion) {
  const auto hello = decode_hello(body_of(encode(Hello{99, 0, 1, ""})) + "fields of the future");
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->version, 99U);
}

TEST(Wire, CutFramesAreRefused) {
  const std::string request = body_of(encode(StoreRequest{7, RequestKind::kSet, 0, {"key", "value"}}));
  for (size_t size = 0; size < request.size(); ++size) EXPECT_FALSE(decode_request(request.substr(0, size)));
  EXPECT_FALSE(decode_request(request + "x"));
  const std::string hello = body_of(encode(Hello{kProtocolVersion, 0, 1, "job"}));
  for (size_t size = 0; size < hello.size(); ++size) EXPECT_FALSE(decode_hello(hello.substr(0, size)));
}

TEST(Wire, DamagedRequestsAreRefusedOrRoundTrip) {
  std::mt19937 random(18);
  const std::string request = body_of(encode(StoreRequest{7, RequestKind::kSet, 0, {"key", "value"}}));
  int read = 0;
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = request;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 4 == 0) bytes.resize(random() % bytes.size());
    const auto found = decode_request(bytes);
    ++(found ? read : refused);
    EXPECT_EQ(found ? body_of(encode(*found)) : bytes, bytes);
  }
  EXPECT_GT(read, 500);
  EXPECT_GT(refused, 500);
}

TEST(Wire, RandomBytesNeverReadBeyondTheEnd) {
  std::mt19937 random(17);  // the sanitizers watch
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 64, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    decode_request(bytes);
    decode_reply(bytes);
    decode_push(bytes);
    decode_absences(bytes);
    decode_hello(std::string(kMagic) + bytes);
    decode_welcome(std::string(kMagic) + bytes);
  }
}

}  // namespace
}  // namespace backplane::core
