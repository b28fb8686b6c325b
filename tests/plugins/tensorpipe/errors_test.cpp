// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

#include <gtest/gtest.h>
#include <tensorpipe/tensorpipe.h>

namespace backplane::tensorpipe {
namespace {

template <typename E, typename... Arguments>
::tensorpipe::Error error_of(Arguments... arguments) {
  return ::tensorpipe::Error(std::make_shared<E>(arguments...), "here", 1);
}

TEST(TensorPipeErrorsTest, DetectsPeerGoneByTypeAndText) {
  EXPECT_TRUE(is_peer_gone(error_of<::tensorpipe::EOFError>()));
  EXPECT_TRUE(is_peer_gone(error_of<::tensorpipe::PipeClosedError>()));
  EXPECT_TRUE(is_peer_gone(error_of<::tensorpipe::SystemError>("read", ECONNRESET)));
  EXPECT_FALSE(is_peer_gone(error_of<::tensorpipe::SystemError>("read", ENOMEM)));
  // A text of the uv transport.
  EXPECT_TRUE(
      text_says_peer_gone("EOF: end of file (this error originated at tensorpipe/transport/uv/connection_impl.cc)"));
  EXPECT_TRUE(text_says_peer_gone("ETIMEDOUT: connection timed out"));
  EXPECT_TRUE(text_says_peer_gone("EHOSTUNREACH: host is unreachable"));
  EXPECT_FALSE(text_says_peer_gone("out of memory"));
}

TEST(TensorPipeErrorsTest, NamesThePeer) {
  EXPECT_EQ(failure_of(error_of<::tensorpipe::EOFError>(), 3).status(), BP_PEER_LOST);
  EXPECT_EQ(failure_of(error_of<::tensorpipe::EOFError>(), 3).peer_rank(), 3);
  EXPECT_EQ(failure_of(error_of<::tensorpipe::SystemError>("read", ENOMEM), 3).status(), BP_INTERNAL);
}

}  // namespace
}  // namespace backplane::tensorpipe
