// SPDX-License-Identifier: Apache-2.0
//
// Classification of TensorPipe's errors.
#pragma once

#include <string>

#include "backplane/sdk/failure.hpp"

namespace tensorpipe {
class Error;
}

namespace backplane::tensorpipe {

// Whether the error means that the other end has closed or died. Looks at type and text, because the uv transport
// reports end of file as an error that only its text distinguishes.
bool is_peer_gone(const ::tensorpipe::Error& error);
// The check of the text alone.
bool text_says_peer_gone(const std::string& text);

// BP_PEER_LOST naming the worker if its end is gone, else BP_INTERNAL.
sdk::Failure failure_of(const ::tensorpipe::Error& error, int peer);

}  // namespace backplane::tensorpipe
