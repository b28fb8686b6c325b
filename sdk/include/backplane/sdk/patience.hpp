// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backplane/base/patience.hpp"

namespace backplane::sdk {

using base::Patience;

}  // namespace backplane::sdk
