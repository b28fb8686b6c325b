// SPDX-License-Identifier: Apache-2.0
//
// The command under test as a process. Every wait has a deadline.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backplane/base/subprocess.hpp"
#include "support/environment.hpp"

namespace backplane::test {

namespace fs = std::filesystem;

struct Outcome {
  int code = -1;  // of exit, or 128 + signal
  std::string out;
  std::string err;
};

struct Setting {
  std::map<std::string, std::string> environment = {};  // added to the test's
  std::string input = {};
  std::string program = BACKPLANE_TEST_COMMAND;
};

// A started command. The destructor kills it.
class Command {
 public:
  explicit Command(const std::vector<std::string>& arguments, const Setting& setting = {});
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return process_.pid(); }
  void signal(int number) const;
  // The output so far.
  std::string out() const;
  std::string err() const;
  Outcome wait();

 private:
  ScopedDirectory directory_;
  base::Subprocess process_;
};

inline Outcome run(const std::vector<std::string>& arguments, const Setting& setting = {}) {
  return Command(arguments, setting).wait();
}

// Polls the condition for at most 180 s. Returns false if it never holds.
bool eventually(const std::function<bool()>& condition);

// Whether the process has ended; a zombie has.
bool has_ended(pid_t pid);

bool contains(const std::string& text, const std::string& part);
size_t count_lines(const std::string& text, const std::string& line);
std::string read_file(const fs::path& path);

// Waits until the file holds a line, and returns the number in it; 0 after 180 s.
pid_t pid_in(const fs::path& file);

// The directory of a faulty plugin, for BACKPLANE_PLUGIN_PATH.
inline std::string plugin_directory(const std::string& fault) {
  return std::string(BACKPLANE_TEST_FIXTURES) + "/" + fault;
}

}  // namespace backplane::test
