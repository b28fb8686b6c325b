// SPDX-License-Identifier: Apache-2.0
#include "backplane/sdk/failure.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>

namespace backplane::sdk {
namespace {

template <typename Exception>
bp_error thrown(const Exception& exception) {
  bp_error err;
  bp_error_init(&err);
  const int32_t status = guarded(&err, [&exception]() -> int32_t { throw exception; });
  EXPECT_EQ(status, err.status);
  return err;
}

TEST(FailureTest, AFailureIsReportedInFull) {
  const bp_error err = thrown(Failure(BP_PEER_LOST, "rank 3 is gone", 3, ECONNRESET));
  EXPECT_EQ(err.status, BP_PEER_LOST);
  EXPECT_EQ(err.peer_rank, 3);
  EXPECT_EQ(err.native_code, ECONNRESET);
  EXPECT_STREQ(err.text, "rank 3 is gone");
}

TEST(FailureTest, ExhaustedMemoryDescriptorsThreadsAndSpaceAreResource) {
  EXPECT_EQ(thrown(std::bad_alloc()).status, BP_RESOURCE);
  EXPECT_EQ(thrown(std::bad_array_new_length()).status, BP_RESOURCE);
  for (const int number : {EMFILE, ENFILE, EAGAIN, ENOMEM, ENOSPC}) {
    for (const std::error_category* category : {&std::system_category(), &std::generic_category()}) {
      const bp_error err = thrown(std::system_error(number, *category, "cannot start"));
      EXPECT_EQ(err.status, BP_RESOURCE) << number;
      EXPECT_EQ(err.native_code, number);
      EXPECT_EQ(err.peer_rank, -1);
      EXPECT_EQ(std::string(err.text).find("cannot start: "), 0U) << err.text;
    }
  }
  const std::filesystem::filesystem_error full("cannot write", std::error_code(ENOSPC, std::system_category()));
  EXPECT_EQ(thrown(full).status, BP_RESOURCE);
}

TEST(FailureTest, OtherErrorsAreInternal) {
  EXPECT_EQ(thrown(std::system_error(EINVAL, std::system_category())).status, BP_INTERNAL);
  EXPECT_EQ(thrown(std::future_error(std::future_errc::no_state)).status, BP_INTERNAL);
  EXPECT_EQ(thrown(std::runtime_error("no idea")).status, BP_INTERNAL);
  EXPECT_EQ(thrown(7).status, BP_INTERNAL);
  // In another category the number has another meaning.
  EXPECT_EQ(thrown(std::system_error(ENOSPC, std::iostream_category())).status, BP_INTERNAL);
}

}  // namespace
}  // namespace backplane::sdk
