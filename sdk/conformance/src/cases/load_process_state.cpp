// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fenv.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <locale>
#include <new>
#include <sstream>
#include <vector>

#include "load_open.hpp"
#include "proc.hpp"

extern "C" char** environ;

namespace backplane::conformance::load {
namespace {

std::string descriptors() {
  std::vector<std::string> all;
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return "unknown";
  while (const dirent* entry = readdir(directory)) {
    const int number = std::atoi(entry->d_name);
    if (entry->d_name[0] == '.' || number == dirfd(directory)) continue;
    std::error_code gone;
    all.push_back(std::string(entry->d_name) + " " +
                  std::filesystem::read_symlink("/proc/self/fd/" + std::string(entry->d_name), gone).string());
  }
  closedir(directory);
  std::sort(all.begin(), all.end());
  std::string text;
  for (const std::string& line : all) text += line + "; ";
  return text;
}

std::string signal_handlers() {
  std::ostringstream text;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action = {};
    if (sigaction(number, nullptr, &action) != 0) continue;
    const auto handler =
        reinterpret_cast<uintptr_t>((action.sa_flags & SA_SIGINFO) != 0 ? reinterpret_cast<void*>(action.sa_sigaction)
                                                                        : reinterpret_cast<void*>(action.sa_handler));
    if (handler != 0 || action.sa_flags != 0) text << number << ": " << handler << "/" << action.sa_flags << "; ";
  }
  return text.str();
}

// Names, and a hash of each value: values may be confidential.
std::string environment() {
  std::ostringstream text;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string pair = *variable;
    text << pair.substr(0, pair.find('=')) << " (" << std::hash<std::string>()(pair) % 1000 << "); ";
  }
  return text.str();
}

std::string floating_point() {
  fenv_t state;
  fegetenv(&state);
  std::ostringstream text;
  text << "rounding " << fegetround();
#if defined(__x86_64__)
  text << ", mxcsr " << (state.__mxcsr & ~0x3fU);  // without the sticky flags: flush to zero and the like
#endif
  return text.str();
}

std::string limits() {
  std::ostringstream text;
  for (int resource = 0; resource < static_cast<int>(RLIM_NLIMITS); ++resource) {
    rlimit limit = {};
    getrlimit(static_cast<__rlimit_resource>(resource), &limit);
    text << limit.rlim_cur << "/" << limit.rlim_max << "; ";
  }
  return text.str();
}

std::string timers() {
  std::ostringstream text;
  for (const __itimer_which which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    itimerval timer = {};
    getitimer(which, &timer);
    const bool runs = timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0;
    text << (runs ? "on" : "off") << "; ";
  }
  return text.str();
}

std::string children() {
  std::ifstream file("/proc/self/task/" + std::to_string(getpid()) + "/children");
  std::string text;
  std::getline(file, text);
  return text;
}

std::string handlers_of_cpp() {
  std::ostringstream text;
  text << reinterpret_cast<uintptr_t>(std::get_terminate()) << " "
       << reinterpret_cast<uintptr_t>(std::get_new_handler());
  return text.str();
}

}  // namespace

ProcessState process_state() {
  return {{"children", children()},
          {"descriptors", descriptors()},
          {"environment", environment()},
          {"floating-point mode", floating_point()},
          {"handlers of terminate and new", handlers_of_cpp()},
          {"locale", std::string(setlocale(LC_ALL, nullptr)) + ", " + std::locale().name()},
          {"resource limits", limits()},
          {"signal handlers", signal_handlers()},
          {"signal mask", status_text("SigBlk")},
          {"threads", status_text("Threads")},
          {"timers", timers()},
          {"umask", status_text("Umask")},
          {"working directory", std::filesystem::current_path().string()}};
}

void compare_process_state(Rank& rank, const ProcessState& before, const std::string& who) {
  for (const auto& [name, value] : process_state()) {
    const std::string& old = before.at(name);
    if (value == old) continue;
    // Long texts differ somewhere in the middle: show the place.
    const auto at =
        static_cast<size_t>(std::mismatch(old.begin(), old.end(), value.begin(), value.end()).first - old.begin());
    const size_t from = at < 40 ? 0 : at - 40;
    rank.check(false, who + " leaves the " + name + " of the process alone: " + old.substr(from, 200),
               value.substr(std::min(from, value.size()), 200));
  }
}

}  // namespace backplane::conformance::load
