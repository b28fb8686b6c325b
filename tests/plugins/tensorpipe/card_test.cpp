// SPDX-License-Identifier: Apache-2.0
#include "card.hpp"

#include <gtest/gtest.h>

#include "backplane/sdk/failure.hpp"
#include "support/failures.hpp"

namespace backplane::tensorpipe {
namespace {

Card card(const std::string& name, const std::string& host, const std::string& uv, const std::string& shm) {
  return {{'!', '\n', '\0', 'x'}, host, uv, shm, {name, 2, {{"b", {{0, 1}}}}}};
}

std::string refusal(const Card& mine, const Card& other) {
  try {
    way_to(mine, other, 1);
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), BP_INVALID);
    EXPECT_EQ(failure.peer_rank(), 1);
    return failure.what();
  }
  return "";
}

TEST(TensorPipeCardTest, IsReadAndWritten) {
  Card written = card("a", "h", "uv://127.0.0.1:1", "");
  written.express = "name";
  const Card read = parse_card(format_card(written), 0);
  EXPECT_EQ(read.token, written.token);
  EXPECT_EQ(read.host, "h");
  EXPECT_EQ(read.uv, written.uv);
  EXPECT_EQ(read.shm, "");
  EXPECT_EQ(read.devices.name, "a");
  EXPECT_EQ(read.devices.count, 2);
  EXPECT_EQ(read.devices.maps, written.devices.maps);
  EXPECT_EQ(read.express, "name");
  for (const std::string& broken :
       {std::string("h"), format_card(written).substr(0, format_card(written).size() - 1)}) {
    std::string text;
    EXPECT_EQ(test::status_of<sdk::Failure>([&broken] { parse_card(broken, 0); }, &text), BP_INVALID) << broken;
    EXPECT_EQ(text, "a worker has left a broken card");
  }
}

// Older workers read all of a card but its last line.
TEST(TensorPipeCardTest, WorkersOfOtherVersionsAreNamed) {
  const Card mine = card("a", "h", "", "shm://a");
  Card other = card("b", "h", "", "shm://b");
  EXPECT_EQ(parse_card(format_card(other), 1).wire, kWireVersion);
  EXPECT_NO_THROW(require_same_wire(mine, parse_card(format_card(other), 1), 1));
  other.wire = 2;
  EXPECT_EQ(parse_card(format_card(other), 1).wire, 2);
  other.wire = 1;
  const Card old = parse_card(format_card(other), 1);
  EXPECT_EQ(old.wire, 1);
  EXPECT_EQ(old.token, other.token);
  EXPECT_TRUE(format_card(card("b", "h", "", "shm://b")).starts_with(format_card(other)));
  try {
    require_same_wire(mine, old, 1);
    ADD_FAILURE() << "they are taken for the same";
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), BP_UNSUPPORTED);
    EXPECT_EQ(failure.peer_rank(), 1);
    EXPECT_STREQ(failure.what(),
                 "worker b speaks version 1 of tensorpipe's messages, and worker a version 3; let all workers run the "
                 "same version of Backplane");
  }
}

TEST(TensorPipeCardTest, SharedMemoryIsTheWayWithinAHost) {
  const Card a = card("a", "h", "uv://127.0.0.1:1", "shm://a");
  EXPECT_EQ(way_to(a, card("b", "h", "uv://127.0.0.1:2", "shm://b"), 1), "shm://b");
  EXPECT_EQ(way_to(a, card("b", "h", "uv://127.0.0.1:2", ""), 1), "uv://127.0.0.1:2");
  EXPECT_EQ(way_to(card("a", "h", "uv://10.0.0.1:1", "shm://a"), card("b", "i", "uv://10.0.0.2:2", "shm://b"), 1),
            "uv://10.0.0.2:2");
}

TEST(TensorPipeCardTest, WorkersWithoutAWayAreToldWhatHelps) {
  const Card a = card("a", "h", "uv://127.0.0.1:1", "shm://a");
  EXPECT_NE(refusal(a, card("b", "i", "uv://10.0.0.2:2", "")).find("but a listens on a loopback address"),
            std::string::npos);
  EXPECT_NE(refusal(card("a", "h", "uv://10.0.0.1:1", ""), card("b", "i", "uv://127.0.0.1:2", ""))
                .find("but b listens on a loopback address"),
            std::string::npos);
  EXPECT_NE(refusal(card("a", "h", "uv://127.0.0.1:1", ""), card("b", "h", "", "shm://b"))
                .find("no transport in common: uv here, shm there"),
            std::string::npos);
  EXPECT_NE(refusal(card("a", "h", "", "shm://a"), card("b", "i", "", "shm://b")).find("on different hosts"),
            std::string::npos);
}

}  // namespace
}  // namespace backplane::tensorpipe
