// SPDX-License-Identifier: Apache-2.0
#include "fault.hpp"

#include <gtest/gtest.h>
#include <tensorpipe/tensorpipe.h>

namespace backplane::tensorpipe {
namespace {

template <typename E, typename... Arguments>
::tensorpipe::Error error_of(Arguments... arguments) {
  return ::tensorpipe::Error(std::make_shared<E>(arguments...), "here", 1);
}

TEST(TensorPipeFaultTest, EndsAreKnownByTypeAndByText) {
  EXPECT_TRUE(is_end_of_peer(error_of<::tensorpipe::EOFError>()));
  EXPECT_TRUE(is_end_of_peer(error_of<::tensorpipe::PipeClosedError>()));
  EXPECT_TRUE(is_end_of_peer(error_of<::tensorpipe::SystemError>("read", ECONNRESET)));
  EXPECT_FALSE(is_end_of_peer(error_of<::tensorpipe::SystemError>("read", ENOMEM)));
  // The uv transport's own words.
  EXPECT_TRUE(
      says_end_of_peer("EOF: end of file (this error originated at tensorpipe/transport/uv/connection_impl.cc)"));
  EXPECT_TRUE(says_end_of_peer("ETIMEDOUT: connection timed out"));
  EXPECT_TRUE(says_end_of_peer("EHOSTUNREACH: host is unreachable"));
  EXPECT_FALSE(says_end_of_peer("out of memory"));
}

TEST(TensorPipeFaultTest, AnEndNamesThePeer) {
  EXPECT_EQ(failure_of(error_of<::tensorpipe::EOFError>(), 3).status(), BP_PEER_LOST);
  EXPECT_EQ(failure_of(error_of<::tensorpipe::EOFError>(), 3).peer_rank(), 3);
  EXPECT_EQ(failure_of(error_of<::tensorpipe::SystemError>("read", ENOMEM), 3).status(), BP_INTERNAL);
}

}  // namespace
}  // namespace backplane::tensorpipe
