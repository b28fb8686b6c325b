// SPDX-License-Identifier: Apache-2.0
//
// The functions of this process that others may call.
#pragma once

#include <string>
#include <string_view>

#include "backplane/rpc.h"

namespace backplane::core::rpc {

struct Function {
  bp_rpc_function run = nullptr;
  void* ctx = nullptr;
  bool is_short = false;  // it neither waits nor calls anybody
};

// BP_INVALID if there is one of that name.
void register_function(const std::string& name, Function function);
// BP_INVALID names the nearest one.
Function find_function(const std::string& name);
bool is_short_function(const std::string& name);  // false if there is none

}  // namespace backplane::core::rpc
