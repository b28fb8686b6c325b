// SPDX-License-Identifier: Apache-2.0
#include "child.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include "finalize.hpp"

namespace backplane::conformance {
namespace {

constexpr int kChannel = 3;  // the descriptor of the pipe to the supervisor
constexpr int kPmi = 4;      // that of the connection which the supervisor offers to MPI

// The descriptor that PMI_FD names, or -1.
int pmi_descriptor() {
  const char* const text = std::getenv("PMI_FD");
  return text == nullptr ? -1 : std::atoi(text);
}

// Leaves five descriptors: 0 is /dev/null, 1 and 2 lead to the supervisor, 3 is the channel, 4 is that of PMI_FD.
void arrange_descriptors(ChildSetup& setup) {
  const int channel = fcntl(setup.run.channel.descriptor(), F_DUPFD_CLOEXEC, 100);
  const int output = fcntl(setup.output, F_DUPFD_CLOEXEC, 101);
  const int pmi = fcntl(pmi_descriptor(), F_DUPFD_CLOEXEC, 102);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  dup3(channel, kChannel, O_CLOEXEC);
  if (pmi >= 0) {
    dup3(pmi, kPmi, O_CLOEXEC);
    setenv("PMI_FD", std::to_string(kPmi).c_str(), 1);
  }
  close_range(pmi >= 0 ? kPmi + 1 : kPmi, ~0U, 0);
  setup.run.channel = Channel(kChannel);
}

// The state of a new program: no handlers, no blocked signals.
void reset_signals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal == SIGSEGV || signal == SIGBUS || signal == SIGABRT || signal == SIGFPE || signal == SIGILL) continue;
    ::signal(signal, SIG_DFL);  // those above may be a sanitizer's
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void end(const Run& run, int32_t member, const std::string& expected, const std::string& actual) {
  run.channel.send({Record::kFatal, member, {expected, actual, run.world->step(member), std::to_string(now())}});
  run.world->break_barriers();
  _exit(0);
}

const bp_backend* find_backend(const bp_plugin& plugin, const std::string& id) {
  for (uint32_t i = 0; i < plugin.backend_count; ++i) {
    const bp_backend* backend = plugin.backends[i];
    if (backend != nullptr && (id.empty() || (backend->id != nullptr && id == backend->id))) return backend;
  }
  return nullptr;
}

void open_subject(ChildSetup& setup) {
  Run& run = setup.run;
  const int32_t first = setup.members.front();
  if (run.plugin == nullptr) {
    run.world->set_step(first, "loading the plugin");
    std::string why;
    run.plugin = load_plugin(run.path, why);
    if (run.plugin == nullptr) end(run, first, "a plugin that can be loaded", why);
  }
  run.backend = find_backend(*run.plugin, run.backend_id);
  if (run.backend == nullptr) end(run, first, "a backend '" + run.backend_id + "' in the plugin", "there is none");
}

void run_body(const ChildSetup& setup, int32_t member) {
  const Run& run = setup.run;
  try {
    Rank rank(run, member);
    rank.step("at the beginning");
    setup.which->body(rank);
  } catch (const BodyEnded&) {
  } catch (const std::exception& error) {
    run.channel.send({Record::kHarnessError, member, {std::string("a case threw: ") + error.what()}});
    run.world->break_barriers();
  }
  run.world->leave(member);
}

}  // namespace

std::string file_problem(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return std::strerror(errno);
  if (S_ISREG(status.st_mode)) return "";
  const char* kind = S_ISDIR(status.st_mode)    ? "a directory"
                     : S_ISFIFO(status.st_mode) ? "a FIFO"
                     : S_ISSOCK(status.st_mode) ? "a socket"
                                                : "a device";
  return fmt::format("it is {}, not a regular file", kind);
}

const bp_plugin* load_plugin(const std::string& path, std::string& why) {
  why = file_problem(path);
  if (!why.empty()) return nullptr;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why = dlerror();
    return nullptr;
  }
  const void* entry = dlsym(library, BP_PLUGIN_SYMBOL);
  if (entry == nullptr) why = "it exports no symbol " BP_PLUGIN_SYMBOL;
  return static_cast<const bp_plugin*>(entry);
}

void run_child(ChildSetup& setup) {
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);  // a crash of the plugin is a finding; a core file would not help
  reset_signals();
  arrange_descriptors(setup);
  const Case& which = *setup.which;
  if (setup.is_extra) {
    setup.run.plugin = nullptr;
  } else if (which.loads) {
    open_subject(setup);
  }
  if (setup.members.size() == 1) {
    run_body(setup, setup.members.front());
  } else {
    std::vector<std::thread> threads;
    for (const int32_t member : setup.members) threads.emplace_back([&setup, member] { run_body(setup, member); });
    for (std::thread& thread : threads) thread.join();
  }
  const Run& run = setup.run;
  if (run.backend != nullptr) {
    run.world->set_step(setup.members.front(), "in finalize, after all agents were destroyed");
    finalize(*run.backend);
  }
  for (const int32_t member : setup.members) run.channel.send({Record::kDone, member, {}});
  _exit(0);  // without destructors of the plugin
}

}  // namespace backplane::conformance
