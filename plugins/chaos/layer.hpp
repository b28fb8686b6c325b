// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backplane/sdk/layer.hpp"
#include "backplane/sdk/sdk.hpp"

namespace backplane::chaos {

// Throws sdk::Failure.
std::unique_ptr<sdk::ProcessGroup> make_layer(const sdk::Context& context);

}  // namespace backplane::chaos
