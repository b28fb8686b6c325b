// SPDX-License-Identifier: Apache-2.0
//
// An error that ends the command: a sentence for stderr and an exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace backplane::tool {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;
constexpr int kTimedOut = 124;       // as timeout(1)
constexpr int kNotExecutable = 126;  // this and the next as in shells
constexpr int kNotFound = 127;
constexpr int kSignalled = 128;  // plus the signal's number

class Failure : public std::runtime_error {
 public:
  Failure(int exit_code, const std::string& sentence) : std::runtime_error(sentence), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// "cannot open the pipe: Too many open files", from errno.
[[noreturn]] void fail_system(const std::string& what);

// "No such file or directory"; safe with threads.
std::string errno_text(int number);

// "Killed" for 9.
std::string signal_text(int number);

}  // namespace backplane::tool
