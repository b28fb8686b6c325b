// SPDX-License-Identifier: Apache-2.0
#include "options/option_value.hpp"

#include <gtest/gtest.h>

#include "error.hpp"
#include "options/nearest.hpp"

namespace backplane::core {
namespace {

bp_option option(uint32_t type, const char* key, const char* fallback, double min = 0, double max = 0) {
  return {
      sizeof(bp_option), type, 0, 0, key, fallback, "help", type == BP_OPTION_ENUM ? "ring|tree" : nullptr, min, max};
}

TEST(OptionValueTest, EachTypeIsReadAndNormalised) {
  const auto text = [](uint32_t type, const char* given) {
    const OptionValue value = read_option(option(type, "k", ""), given);
    EXPECT_EQ(value.problem, "") << given;
    return value.text;
  };
  EXPECT_EQ(text(BP_OPTION_STRING, "0x10 K"), "0x10 K");
  EXPECT_EQ(text(BP_OPTION_INT, "-0012"), "-12");
  EXPECT_EQ(text(BP_OPTION_BOOL, "yes"), "true");
  EXPECT_EQ(text(BP_OPTION_BOOL, "off"), "false");
  EXPECT_EQ(text(BP_OPTION_DURATION, "1.5ms"), "1500000");
  EXPECT_EQ(text(BP_OPTION_DURATION, "2"), "2000000000");
  EXPECT_EQ(text(BP_OPTION_DURATION, "1h"), "3600000000000");
  EXPECT_EQ(text(BP_OPTION_BYTES, "64K"), "65536");
  EXPECT_EQ(text(BP_OPTION_BYTES, "7.4"), "7");
}

// Valid values keep their text.
TEST(OptionValueTest, FloatsAndChoicesKeepTheirText) {
  const bp_option share = option(BP_OPTION_FLOAT, "k", "", 0.25, 2);
  for (const char* good : {"0.25", "1e0", "2.000"}) {
    const OptionValue value = read_option(share, good);
    EXPECT_EQ(value.problem, "") << good;
    EXPECT_EQ(value.text, good);
  }
  for (const char* bad : {"0.24", "2.01", "2e1", "-1"}) {
    EXPECT_EQ(read_option(share, bad).problem, "is not between 0.25 and 2") << bad;
  }
  for (const char* bad : {"", "1,5", "1.5s", "inf", "0x1"}) {
    EXPECT_EQ(read_option(share, bad).problem, "is not a number") << bad;
  }
  const bp_option shape = option(BP_OPTION_ENUM, "k", "");
  for (const char* good : {"ring", "tree"}) {
    EXPECT_EQ(read_option(shape, good).problem, "") << good;
    EXPECT_EQ(read_option(shape, good).text, good);
  }
  for (const char* bad : {"", "Ring", "ring|tree", "tre", "trees"}) {
    EXPECT_EQ(read_option(shape, bad).problem, "is not one of ring|tree") << bad;
  }
}

TEST(OptionValueTest, ErrorsOfValues) {
  const auto problem = [](uint32_t type, const char* value) {
    return read_option(option(type, "k", "", 1, 64), value).problem;
  };
  EXPECT_EQ(problem(BP_OPTION_INT, "many"), "is not a whole number");
  EXPECT_EQ(problem(BP_OPTION_INT, "3x"), "is not a whole number");
  EXPECT_EQ(problem(BP_OPTION_INT, "65"), "is not between 1 and 64");
  EXPECT_EQ(problem(BP_OPTION_INT, "99999999999999999999"), "is not a whole number");
  EXPECT_EQ(problem(BP_OPTION_FLOAT, "nan"), "is not a number");
  EXPECT_EQ(problem(BP_OPTION_BOOL, "maybe"), "is not true or false");
  EXPECT_EQ(problem(BP_OPTION_ENUM, "star"), "is not one of ring|tree");
  EXPECT_EQ(problem(BP_OPTION_DURATION, "5 parsecs"), "is not a duration such as 250ms, 5s or 2m");
  EXPECT_EQ(problem(BP_OPTION_DURATION, "1h"), "is not between 1e-09 s and 6.4e-08 s");
  EXPECT_EQ(problem(BP_OPTION_DURATION, "20"),
            "is not between 1e-09 s and 6.4e-08 s; a number without a unit is seconds: write 20ms or 20us");
  EXPECT_EQ(problem(BP_OPTION_BYTES, "1T"), "is not a size such as 4096, 64K or 1M");
  EXPECT_EQ(problem(BP_OPTION_BYTES, "1e19"), "is too large");
  EXPECT_EQ(problem(BP_OPTION_BYTES, "1K"), "is not between 1 and 64");
  EXPECT_EQ(problem(BP_OPTION_STRING, "\xff"), "is not printable UTF-8");
}

class CompleteOptionsTest : public testing::Test {
 protected:
  std::string refusal(const KeyValues& given) const {
    try {
      complete_options(backend_, given);
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), BP_INVALID);
      return e.what();
    }
    return "nothing was refused";
  }

  const bp_option threads_ = option(BP_OPTION_INT, "threads", "2", 1, 64);
  const bp_option iface_ = option(BP_OPTION_STRING, "iface", nullptr);
  bp_option secret_ = option(BP_OPTION_INT, "secret", nullptr);
  const bp_option* const options_[3] = {&threads_, &iface_, &secret_};
  bp_backend backend_ = [this] {
    secret_.flags = BP_OPTION_SECRET | BP_OPTION_REQUIRED;
    bp_backend backend = {};
    backend.id = "acme";
    backend.options = options_;
    backend.option_count = 3;
    return backend;
  }();
};

TEST_F(CompleteOptionsTest, DefaultsAreFilledInInTheOrderOfTheSchema) {
  const KeyValues expected = {{"threads", "2"}, {"iface", "eth0"}, {"secret", "7"}};
  EXPECT_EQ(complete_options(backend_, {{"secret", "7"}, {"iface", "eth0"}}), expected);
}

TEST_F(CompleteOptionsTest, Refusals) {
  EXPECT_EQ(refusal({{"secret", "7"}, {"thread", "3"}}),
            "acme has no option 'thread'. Did you mean 'threads'? It has: threads, iface, secret.");
  EXPECT_EQ(refusal({{"secret", "7"}, {"threads", "3"}, {"threads", "4"}}),
            "option 'threads' of acme is given twice; keep one");
  EXPECT_EQ(refusal({}), "acme needs the option 'secret': help");
  EXPECT_EQ(refusal({{"secret", "7"}, {"threads", "0"}}), "option 'threads' of acme: '0' is not between 1 and 64");
  EXPECT_EQ(refusal({{"secret", "hunter2"}}), "option 'secret' of acme: the value is not a whole number");
}

TEST(NearestTest, FindsOnlyMisspeltNames) {
  const std::vector<std::string> names = {"gloo", "zmq", "inproc"};
  EXPECT_EQ(nearest("glo", names), "gloo");
  EXPECT_EQ(nearest("golo", names), "gloo");
  EXPECT_EQ(nearest("inprco", names), "inproc");
  EXPECT_EQ(nearest("zmp", names), "zmq");
  EXPECT_EQ(nearest("nccl", names), "");
  EXPECT_EQ(nearest(std::string(100000, 'g'), names), "");
}

}  // namespace
}  // namespace backplane::core
