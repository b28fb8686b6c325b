// SPDX-License-Identifier: Apache-2.0
//
// TensorPipe's transports and channels, with torch's names and priorities.
#pragma once

#include <tensorpipe/tensorpipe.h>
#include <tensorpipe/transport/connection.h>
#include <tensorpipe/transport/context.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backplane/sdk/backend.hpp"

namespace backplane::tensorpipe {

using Pipe = std::shared_ptr<::tensorpipe::Pipe>;
// A connection of the same transport as a pipe, beside it, for small messages: the pipe protocol takes longer than
// their transfer.
using Express = std::shared_ptr<::tensorpipe::transport::Connection>;

struct Transports {
  std::shared_ptr<::tensorpipe::Context> context;
  std::vector<std::string> names;
  std::vector<std::function<std::string()>> urls;  // addresses to listen at, by transport; different at each call
  // The shm transport for express connections. Ends with the context. Null if there is none, or if descriptors do not
  // suffice.
  std::shared_ptr<::tensorpipe::transport::Context> express;
};

// A unique name for shm's listeners, which share the namespace of abstract sockets with all users.
std::string unique_name();

// Creates the transports and channels selected by the options transports, channels and address. Without a selection,
// workers that all share memory use shm alone, so that none listens on a port. Waits up to context.timeout_ns until all
// workers have published whether they share memory. Throws sdk::Failure: BP_INVALID for an unknown name or a wrong
// address, BP_UNSUPPORTED if a named transport or channel is not viable, BP_RESOURCE if it needs more descriptors than
// the process may have.
Transports make_transports(const sdk::Context& context);

}  // namespace backplane::tensorpipe
