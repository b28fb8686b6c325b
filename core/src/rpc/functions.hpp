// SPDX-License-Identifier: Apache-2.0
//
// The functions of this process that others may call.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "backplane/rpc.h"

namespace backplane::core::rpc {

struct Function {
  bp_rpc_function run = nullptr;
  void* ctx = nullptr;
  bool is_inline = false;  // it neither waits nor calls anybody
};

// BP_INVALID if there is one of that name.
void register_function(const std::string& name, Function function);
// None: there is no function of that name.
std::optional<Function> find_function(const std::string& name);
// BP_INVALID, which names the nearest one.
[[noreturn]] void fail_unknown_function(const std::string& name);

}  // namespace backplane::core::rpc
