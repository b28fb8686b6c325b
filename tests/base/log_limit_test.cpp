// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/log_limit.hpp"

#include <gtest/gtest.h>

#include "log.hpp"

namespace backplane::base {
namespace {

TEST(LogLimit, AdmitsOneLineOfABurst) {
  LogLimit limit(std::chrono::hours(1));
  EXPECT_EQ(limit.admit(), "");
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(limit.admit(), std::nullopt);
}

TEST(LogLimit, CountsTheLinesThatAreLeftOut) {
  LogLimit limit(std::chrono::milliseconds(50));
  EXPECT_EQ(limit.admit(), "");
  uint64_t omitted = 0;
  std::optional<std::string> next = limit.admit();
  for (; !next; next = limit.admit()) ++omitted;
  const std::string expected =
      omitted == 0 ? "" : " (" + std::to_string(omitted) + " lines of this kind were left out before)";
  EXPECT_EQ(*next, expected);
}

TEST(LogLimit, LimitsTheLogOfTheCore) {
  LogLimit limit(std::chrono::hours(1));
  std::string text;
  core::set_log([](void* ctx, uint32_t, const char* line) { static_cast<std::string*>(ctx)->append(line); }, &text);
  for (int i = 0; i < 1000; ++i) core::log(limit, BP_LOG_WARN, "message {} was dropped", i);
  core::set_log(nullptr, nullptr);
  EXPECT_EQ(text, "message 0 was dropped");
}

}  // namespace
}  // namespace backplane::base
