// SPDX-License-Identifier: Apache-2.0
//
// TensorPipe's transports and channels, by their names and priorities as torch has them.
#pragma once

#include <tensorpipe/tensorpipe.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backplane/sdk/host.hpp"

namespace backplane::tensorpipe_plugin {

struct Endpoint {
  std::shared_ptr<tensorpipe::Context> context;
  std::function<std::vector<std::string>()> addresses;  // URLs for a listener, others each time
  std::string first;  // the transport over which pipes are begun; they change to the best that both have
};

// `transports`, `channels`: names with + or commas between them, empty: all that are viable here. Throws sdk::Failure:
// BP_INVALID for an unknown name, BP_UNSUPPORTED for one that was named and is not viable.
Endpoint make_endpoint(const std::string& name, const std::string& address, const std::string& transports,
                       const std::string& channels, const sdk::Host& host);

}  // namespace backplane::tensorpipe_plugin
