// SPDX-License-Identifier: Apache-2.0
//
// The whole SDK: a backend is one class. Start at backend.hpp.
#pragma once

#include "backend.hpp"
#include "completion.hpp"
#include "failure.hpp"
#include "host.hpp"
#include "options.hpp"
#include "process_group.hpp"
#include "worker.hpp"
