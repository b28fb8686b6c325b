// SPDX-License-Identifier: Apache-2.0
#include "plugin/option_schema.hpp"

#include <gtest/gtest.h>

#include <string>

namespace backplane::core::plugin {
namespace {

bp_option option(uint32_t type, const char* value, const char* choices = nullptr, double min = 0, double max = 0) {
  return {sizeof(bp_option), type, 0, 0, "key", value, "help", choices, min, max};
}

std::string problem(const bp_option& one) {
  const bp_option* const table[] = {&one};
  bp_backend backend{};
  backend.options = table;
  backend.option_count = 1;
  return option_schema_problem(backend);
}

TEST(OptionSchema, AcceptsDefaultsOfEachType) {
  EXPECT_EQ(problem(option(BP_OPTION_STRING, "text")), "");
  EXPECT_EQ(problem(option(BP_OPTION_INT, "-3")), "");
  EXPECT_EQ(problem(option(BP_OPTION_INT, nullptr)), "");
  EXPECT_EQ(problem(option(BP_OPTION_FLOAT, "0.5", nullptr, 0, 1)), "");
  EXPECT_EQ(problem(option(BP_OPTION_BOOL, "yes")), "");
  EXPECT_EQ(problem(option(BP_OPTION_ENUM, "tree", "ring|tree")), "");
  EXPECT_EQ(problem(option(BP_OPTION_DURATION, "30", nullptr, 1e9, 60e9)), "");
  EXPECT_EQ(problem(option(BP_OPTION_DURATION, "1.5ms")), "");
  EXPECT_EQ(problem(option(BP_OPTION_BYTES, "4M", nullptr, 1, 1 << 23)), "");
}

TEST(OptionSchema, RefusesDefaultsThatDoNotParseOrFit) {
  EXPECT_EQ(problem(option(BP_OPTION_INT, "3x")), "option 'key' has the default '3x', which is not a whole number");
  const auto which = [](const char* value, const char* text) {
    return "option 'key' has the default '" + std::string(value) + "', which " + text;
  };
  EXPECT_EQ(problem(option(BP_OPTION_INT, "9", nullptr, 1, 8)), which("9", "is not between 1 and 8"));
  EXPECT_EQ(problem(option(BP_OPTION_FLOAT, "nan")), which("nan", "is not a number"));
  EXPECT_EQ(problem(option(BP_OPTION_BOOL, "maybe")), which("maybe", "is not true or false"));
  EXPECT_EQ(problem(option(BP_OPTION_ENUM, "star", "ring|tree")), which("star", "is not one of ring|tree"));
  EXPECT_EQ(problem(option(BP_OPTION_ENUM, "star")), "option 'key' is an enumeration without choices");
  EXPECT_EQ(problem(option(BP_OPTION_DURATION, "3 weeks")),
            which("3 weeks", "is not a duration such as 250ms, 5s or 2m"));
  EXPECT_EQ(problem(option(BP_OPTION_DURATION, "2m", nullptr, 1e9, 60e9)), which("2m", "is not between 1 s and 60 s"));
  EXPECT_EQ(problem(option(BP_OPTION_BYTES, "4T")), which("4T", "is not a size such as 4096, 64K or 1M"));
}

TEST(OptionSchema, RefusesMalformedDescriptors) {
  bp_option one = option(BP_OPTION_INT, "1");
  one.key = "Key";
  EXPECT_EQ(problem(one), "option 0 has no valid key: a-z, then a-z, 0-9 and _");
  one.key = nullptr;
  EXPECT_EQ(problem(one), "option 0 has no valid key: a-z, then a-z, 0-9 and _");
  one = option(99, "1");
  EXPECT_EQ(problem(one), "option 'key' has the unknown type 99");
  one = option(BP_OPTION_INT, "1", nullptr, 2, 1);
  EXPECT_EQ(problem(one), "option 'key' has the bounds 2 and 1");
  one = option(BP_OPTION_INT, "1");
  one.struct_size = 40;
  EXPECT_EQ(problem(one), "option 0 has a struct_size of 40");
  one = option(BP_OPTION_INT, "1");
  one.flags = BP_OPTION_REQUIRED;
  EXPECT_EQ(problem(one), "option 'key' is required and has a default");
  one = option(BP_OPTION_INT, "hush");
  one.flags = BP_OPTION_SECRET;
  EXPECT_EQ(problem(one), "option 'key' has the default (secret), which is not a whole number");
  one.help = nullptr;
  EXPECT_EQ(problem(one), "option 'key' has no printable help text");
}

}  // namespace
}  // namespace backplane::core::plugin
