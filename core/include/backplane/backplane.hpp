// SPDX-License-Identifier: Apache-2.0
//
// The C++ API. Included by those who want them: gradients.hpp, launch.hpp, multigpu.hpp, and objects.hpp (msgpack) and
// dlpack.hpp, which need further libraries' headers.
#pragma once

#include "backplane/distributed.hpp"
#include "backplane/error.hpp"
#include "backplane/process_group.hpp"
#include "backplane/registry.hpp"
#include "backplane/store.hpp"
#include "backplane/types.hpp"
