// SPDX-License-Identifier: Apache-2.0
//
// The command under test as a process. Every wait has a deadline.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

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

// A started command; killed at the end if it still runs.
class Command {
 public:
  explicit Command(const std::vector<std::string>& arguments, const Setting& setting = {});
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // What it has printed so far.
  std::string out() const;
  std::string err() const;
  Outcome wait();

 private:
  fs::path directory_;
  pid_t pid_ = -1;
};

inline Outcome run(const std::vector<std::string>& arguments, const Setting& setting = {}) {
  return Command(arguments, setting).wait();
}

// Asks again and again, for 20 s at most. False if it never came true.
bool eventually(const std::function<bool()>& condition);

// Neither running nor a zombie of somebody else.
bool gone(pid_t pid);

bool contains(const std::string& text, const std::string& part);
size_t count_lines(const std::string& text, const std::string& line);
std::string read_file(const fs::path& path);

// A directory that ends with the test.
class Workplace {
 public:
  Workplace();
  ~Workplace();
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  // The number in a file, once it is there in full (a line); 0 if it never comes.
  pid_t pid_in(const std::string& name) const;

 private:
  fs::path path_;
};

// Where one of the misbehaving plugins is, for BACKPLANE_PLUGIN_PATH.
inline std::string plugin_directory(const std::string& way) { return std::string(BACKPLANE_TEST_FIXTURES) + "/" + way; }

}  // namespace backplane::test
