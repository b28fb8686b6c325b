// SPDX-License-Identifier: Apache-2.0
//
// TensorPipe's transports and channels, by their names and priorities as torch has them.
#pragma once

#include <tensorpipe/tensorpipe.h>
#include <tensorpipe/transport/context.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backplane/sdk/backend.hpp"

namespace backplane::tensorpipe {

struct Endpoint {
  std::shared_ptr<::tensorpipe::Context> context;
  std::vector<std::string> transports;
  std::vector<std::function<std::string()>> urls;  // where to listen, by transport; elsewhere each time
  // The transport shm itself, for express connections, which ends with the context. NULL: there is none, or there are
  // too few descriptors for them.
  std::shared_ptr<::tensorpipe::transport::Context> express;
};

// For shm, which meets in the abstract namespace of sockets, in which names are nobody's: another one each time.
std::string unique_name();

// By the options transports, channels and address. If they leave it open, workers that all share memory have no other
// transport, so that none listens on a port. Waits for all workers to say whether they do, up to context.timeout_ns.
// Throws sdk::Failure: BP_INVALID for an unknown name or a wrong address, BP_UNSUPPORTED for what was named and is not
// viable, BP_RESOURCE if it takes more descriptors than there are.
Endpoint make_endpoint(const sdk::Context& context);

}  // namespace backplane::tensorpipe
