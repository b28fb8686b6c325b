// SPDX-License-Identifier: Apache-2.0
//
// The whole C++ API. objects.hpp (msgpack) and dlpack.hpp need further libraries' headers and are included by those who
// want them.
#pragma once

#include "backplane/distributed.hpp"
#include "backplane/error.hpp"
#include "backplane/process_group.hpp"
#include "backplane/registry.hpp"
#include "backplane/store.hpp"
#include "backplane/types.hpp"
