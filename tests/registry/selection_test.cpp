// SPDX-License-Identifier: Apache-2.0
#include "registry/selection.hpp"

#include <gtest/gtest.h>

#include "error.hpp"
#include "options/names.hpp"

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
  EXPECT_EQ(parts[1].memory, BP_CUDA);
  EXPECT_EQ(parts[1].name, "nccl");
}

TEST(SelectionTest, WhatIsWrongIsSaid) {
  for (const char* text : {"", ",", "gloo,", "gloo,zmq", "cpu:", ":gloo", "gloo?", "gloo?=1", "gloo?a=%2", "gloo?a=%zz",
                           "../gloo", "cpu:gloo,cpu:zmq", "gloo?a=1&"}) {
    EXPECT_THROW(parse_selection(text), Error) << text;
  }
}

TEST(SelectionTest, ErrorsAreTextWhateverWasTyped) {
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
