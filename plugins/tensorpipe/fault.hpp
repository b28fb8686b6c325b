// SPDX-License-Identifier: Apache-2.0
//
// What TensorPipe's errors mean.
#pragma once

#include <string>

#include "backplane/sdk/failure.hpp"

namespace tensorpipe {
class Error;
}

namespace backplane::tensorpipe {

// Does this error say that the other end is gone? By its text as well as its type: the uv transport reports an end of
// file as an error of its own, which only its words tell from others.
bool is_end_of_peer(const ::tensorpipe::Error& error);
// The words alone.
bool says_end_of_peer(const std::string& text);

// BP_PEER_LOST, naming the worker, if its end is gone, else BP_INTERNAL.
sdk::Failure failure_of(const ::tensorpipe::Error& error, int peer);

}  // namespace backplane::tensorpipe
