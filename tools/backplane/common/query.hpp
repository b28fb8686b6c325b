// SPDX-License-Identifier: Apache-2.0
//
// Runs plugin code in a child process, which is this command under a hidden subcommand. A plugin that crashes, hangs or
// exits loses only its own reply.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace backplane::tool {

constexpr const char* kQueryCommand = "__query";
constexpr const char* kProbe = "probe";  // whether the backend is viable here
constexpr const char* kInfo = "info";    // bp_registry_info
constexpr const char* kFile = "file";    // bp_plugin_file_info; takes a path instead of a backend
constexpr int kReplyDescriptor = 3;      // of the child
constexpr std::chrono::seconds kQueryTimeout{10};

struct QueryReply {
  int32_t status;    // of the C API, or BP_INTERNAL if the child ended before
  std::string text;  // BP_OK: JSON, or a probe's remarks; else the error
};

// Runs the query in a child process. `doing` ends the error text about a child without a reply: "crashed with SIGSEGV
// while probing".
QueryReply query(const std::string& kind, const std::string& backend, const std::string& doing,
                 std::chrono::nanoseconds timeout);

}  // namespace backplane::tool
