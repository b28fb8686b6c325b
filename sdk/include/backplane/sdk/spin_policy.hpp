// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backplane/base/spin_policy.hpp"

namespace backplane::sdk {

using base::SpinPolicy;

}  // namespace backplane::sdk
