// SPDX-License-Identifier: Apache-2.0
#include "tools/command.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

namespace backplane::test {
namespace {

constexpr std::chrono::seconds kWaitLimit{180};

}  // namespace

Command::Command(const std::vector<std::string>& arguments, const Setting& setting) {
  std::ofstream(directory_.file("in"), std::ios::binary) << setting.input;
  const auto open = [this](const char* name, int flags) {
    return base::Descriptor(::open(directory_.file(name).c_str(), flags | O_CLOEXEC, 0600));
  };
  const base::Descriptor in = open("in", O_RDONLY);
  const base::Descriptor out = open("out", O_CREAT | O_WRONLY | O_APPEND);
  const base::Descriptor err = open("err", O_CREAT | O_WRONLY | O_APPEND);
  base::Command command = {.path = setting.program,
                           .arguments = {setting.program},
                           .environment = base::environment_with(setting.environment),
                           .descriptors = {{0, in.get()}, {1, out.get()}, {2, err.get()}}};
  command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
  process_ = base::Subprocess::spawn(std::move(command));
  EXPECT_TRUE(process_);
  EXPECT_EQ(process_.exec_error(), 0);
}

void Command::signal(int number) const { ASSERT_EQ(::kill(pid(), number), 0); }
std::string Command::out() const { return read_file(directory_.file("out")); }
std::string Command::err() const { return read_file(directory_.file("err")); }

Outcome Command::wait() {
  const std::optional<int> status = process_.wait(base::Deadline::after(std::chrono::nanoseconds(kWaitLimit).count()));
  EXPECT_TRUE(status) << "the command did not end; its output is: " << out() << err();
  if (!status) return {-1, out(), err()};
  return {WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status), out(), err()};
}

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kWaitLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // between two checks
  }
  return true;
}

bool has_ended(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t state = stat.rfind(") ");
  return state == std::string::npos || stat[state + 2] == 'Z';
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

size_t count_lines(const std::string& text, const std::string& line) {
  std::istringstream lines(text);
  size_t count = 0;
  for (std::string each; std::getline(lines, each);) count += each == line ? 1 : 0;
  return count;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

pid_t pid_in(const fs::path& file) {
  const bool has_line = eventually([&file] {
    const std::string text = read_file(file);
    return !text.empty() && text.back() == '\n';
  });
  EXPECT_TRUE(has_line) << file;
  return has_line ? std::stoi(read_file(file)) : 0;
}

}  // namespace backplane::test
