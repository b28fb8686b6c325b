// SPDX-License-Identifier: Apache-2.0
#include "tools/command.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

namespace backplane::test {
namespace {

constexpr std::chrono::seconds kPatience{20};

fs::path make_directory() {
  std::string name = (fs::temp_directory_path() / "backplane-tools-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  return name;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& added) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (added.count(text.substr(0, text.find('='))) == 0) result.push_back(text);
  }
  for (const auto& [name, value] : added) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

Command::Command(const std::vector<std::string>& arguments, const Setting& setting) : directory_(make_directory()) {
  std::ofstream(directory_ / "in", std::ios::binary) << setting.input;
  std::vector<std::string> words = {setting.program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = environment_with(setting.environment);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  const int flags = O_CREAT | O_WRONLY | O_APPEND;
  ::posix_spawn_file_actions_addopen(&files, 0, (directory_ / "in").c_str(), O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, 1, (directory_ / "out").c_str(), flags, 0600);
  ::posix_spawn_file_actions_addopen(&files, 2, (directory_ / "err").c_str(), flags, 0600);
  const int failed =
      ::posix_spawn(&pid_, words[0].c_str(), &files, nullptr, pointers(words).data(), pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&files);
  EXPECT_EQ(failed, 0);
}

Command::~Command() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

void Command::signal(int number) const { ASSERT_EQ(::kill(pid_, number), 0); }
std::string Command::out() const { return read_file(directory_ / "out"); }
std::string Command::err() const { return read_file(directory_ / "err"); }

Outcome Command::wait() {
  int status = 0;
  const bool ended = eventually([this, &status] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
  EXPECT_TRUE(ended) << "the command hangs; it has said: " << out() << err();
  if (!ended) return {-1, out(), err()};
  pid_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out(), err()};
}

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // between two looks
  }
  return true;
}

bool gone(pid_t pid) {
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

Workplace::Workplace() : path_(make_directory()) {}
Workplace::~Workplace() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

pid_t Workplace::pid_in(const std::string& name) const {
  const fs::path path = path_ / name;
  const bool there = eventually([&path] {
    const std::string text = read_file(path);
    return !text.empty() && text.back() == '\n';
  });
  EXPECT_TRUE(there) << path;
  return there ? std::stoi(read_file(path)) : 0;
}

}  // namespace backplane::test
