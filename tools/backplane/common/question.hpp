// SPDX-License-Identifier: Apache-2.0
//
// Plugin code runs in a child process, which is this command itself under a hidden subcommand: a plugin that crashes,
// hangs or exits costs its own answer and no more.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace backplane::tool {

constexpr const char* kAnswerCommand = "__answer";
constexpr const char* kProbe = "probe";  // is the backend viable here?
constexpr const char* kInfo = "info";    // bp_registry_info
constexpr const char* kFile = "file";    // bp_plugin_file_info; about a path instead of a backend
constexpr std::chrono::seconds kAnswerTime{10};

struct Answer {
  int32_t status;    // what the C API returned, or BP_INTERNAL if the child did not get that far
  std::string text;  // JSON, or of a probe its remarks, if the status is BP_OK; else why not
};

// `doing` ends the sentence about a child without an answer: "crashed with SIGSEGV while probing".
Answer ask(const std::string& question, const std::string& backend, const std::string& doing,
           std::chrono::nanoseconds timeout);

}  // namespace backplane::tool
