// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backplane/base/owned_op.hpp"

namespace backplane::sdk {

using base::known_part;
using base::OwnedOp;

}  // namespace backplane::sdk
