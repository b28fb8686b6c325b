// SPDX-License-Identifier: Apache-2.0
//
// The functions of this process that workers may call.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "backplane/rpc.h"

namespace backplane::core::rpc {

struct Function {
  bp_rpc_function run = nullptr;
  void* ctx = nullptr;
  bool is_inline = false;  // runs on the thread that received its call
};

// Throws BP_INVALID if the name is taken.
void register_function(const std::string& name, Function function);
// None if there is no function of that name.
std::optional<Function> find_function(const std::string& name);
// Throws BP_INVALID with the most similar name.
[[noreturn]] void fail_unknown_function(const std::string& name);

}  // namespace backplane::core::rpc
