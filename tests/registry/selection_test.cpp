// SPDX-License-Identifier: Apache-2.0
#include "registry/selection.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "error.hpp"
#include "options/names.hpp"
#include "store/store_fixture.hpp"

namespace backplane::core {
namespace {

TEST(SelectionTest, NameAlone) {
  const auto parts = parse_selection("GLOO");
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].name, "gloo");
  EXPECT_FALSE(parts[0].memory);
  EXPECT_TRUE(parts[0].options.empty());
}

TEST(SelectionTest, OptionsAndEscapes) {
  const auto parts = parse_selection("zmq?iface=eth0&address=a%2Cb%26c&empty=");
  const KeyValues expected = {{"iface", "eth0"}, {"address", "a,b&c"}, {"empty", ""}};
  EXPECT_EQ(parts.at(0).options, expected);
}

TEST(SelectionTest, Devices) {
  const auto parts = parse_selection("cpu:gloo?threads=2,cuda:nccl");
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].memory, BP_HOST);
  EXPECT_EQ(parts[0].name, "gloo");
  EXPECT_EQ(parts[0].options, (KeyValues{{"threads", "2"}}));
  EXPECT_EQ(parts[1].memory, BP_CUDA);
  EXPECT_EQ(parts[1].name, "nccl");
  EXPECT_TRUE(parts[1].options.empty());
}

TEST(SelectionTest, CompositesHaveOptionsForEachBackend) {
  const auto parts = parse_selection("cpu:shm?staging=1048576&spin=1%2B1+GLOO?iface=eth0,cuda:nccl");
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].memory, BP_HOST);
  EXPECT_EQ(parts[0].name, "shm");
  EXPECT_EQ(parts[0].options, (KeyValues{{"staging", "1048576"}, {"spin", "1+1"}}));
  ASSERT_EQ(parts[0].between.size(), 1U);
  EXPECT_EQ(parts[0].between[0].name, "gloo");
  EXPECT_EQ(parts[0].between[0].options, (KeyValues{{"iface", "eth0"}}));
  EXPECT_TRUE(parts[1].between.empty());
}

TEST(SelectionTest, ErrorsNameTheWrongPart) {
  constexpr const char* kNoName = "'' is not a valid name; use 1 to 32 letters, digits, _ and -";
  constexpr const char* kNoPair = "expected key=value after '?' or '&', found ";
  constexpr const char* kNoDigits = "% is not followed by two hexadecimal digits; write %25 for a % sign";
  const std::pair<const char*, std::string> cases[] = {
      {"", kNoName},
      {",", kNoName},
      {"gloo,", kNoName},
      {"cpu:", kNoName},
      {"gloo,zmq", "gloo and zmq serve the same device; name one backend, or one for each device: cpu:gloo,cuda:zmq"},
      {"cpu:gloo,cpu:zmq",
       "gloo and zmq serve the same device; name one backend, or one for each device: cpu:gloo,cuda:zmq"},
      {"gloo:threads=2", "unknown device 'gloo'; options follow a '?': write 'gloo?threads=2'"},
      {":gloo", "unknown device ''; use cpu or cuda"},
      {"shm+", kNoName},
      {"+gloo", kNoName},
      {"shm+gloo+zmq", "3 backends are joined by '+'; name one for the ranks of a host and one between hosts"},
      {"shm+cpu:gloo", "the device of a part stands before its first backend; write 'shm+gloo'"},
      {"cuda:shm+gloo", "shm+gloo serves the memory of the processor alone; write cpu:shm+gloo"},
      {"shm+auto", "auto is not part of a composite; write auto, or name both backends"},
      {"gloo?", kNoPair + std::string("''")},
      {"gloo?=1", kNoPair + std::string("'=1'")},
      {"gloo?a=1&", kNoPair + std::string("''")},
      {"gloo?a=%2", kNoDigits},
      {"gloo?a=%zz", kNoDigits},
      {"../gloo", "'../gloo' is not a valid name; use 1 to 32 letters, digits, _ and -"}};
  for (const auto& [text, expected] : cases) {
    try {
      parse_selection(text);
      ADD_FAILURE() << "'" << text << "' was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), BP_INVALID) << text;
      EXPECT_EQ(e.what(), "backend '" + std::string(text) + "': " + expected);
    }
  }
}

// RPC backends have no composites, and lists of `+` among their values.
TEST(SelectionTest, AWorkerHasOneBackend) {
  const SelectionPart part = parse_rpc_selection("TensorPipe?transports=shm+uv&channels=basic");
  EXPECT_EQ(part.name, "tensorpipe");
  EXPECT_EQ(part.options, (KeyValues{{"transports", "shm+uv"}, {"channels", "basic"}}));
  EXPECT_ERROR(BP_INVALID, "'zmq,gloo' is not one RPC backend", parse_rpc_selection("zmq,gloo"));
  EXPECT_ERROR(BP_INVALID, "RPC backend 'cpu:zmq': write it without a device", parse_rpc_selection("cpu:zmq"));
  EXPECT_ERROR(BP_INVALID, "'shm+zmq' is not a valid name", parse_rpc_selection("shm+zmq"));
}

TEST(SelectionTest, ErrorsArePrintable) {
  for (const char* text : {"\xff\n", "gloo?\xff", "\xff:gloo", "gloo?a\xff=%2"}) {
    try {
      parse_selection(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_TRUE(printable(e.what())) << e.what();
      EXPECT_NE(std::string(e.what()).find("\\xff"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace backplane::core
