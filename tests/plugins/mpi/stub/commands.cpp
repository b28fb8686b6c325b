// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <set>
#include <sstream>

namespace stub {
namespace {

struct Commands {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_read = false;  // BACKPLANE_STUB
  std::map<std::string, std::string> settings;
  std::map<std::string, std::set<std::string>> functions;  // by command
  std::map<std::string, int> calls;
  std::string failed;  // the function that was last told to fail

  bool has(const std::string& command, const std::string& function) { return functions[command].count(function) > 0; }
};

void execute(Commands& commands, const std::string& text) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ';');) {
    const size_t end = part.find('=');
    if (end == std::string::npos) continue;
    const std::string command = part.substr(0, end);
    const std::string value = part.substr(end + 1);
    if (command == "clear") {
      for (auto& [name, functions] : commands.functions) functions.erase(value);
    } else if (command == "fail" || command == "hold" || command == "hang" || command == "late") {
      commands.functions[command].insert(value);
    } else {
      commands.settings[command] = value;
    }
  }
}

// Never destroyed: threads may hang in MPI when the process ends. With its mutex held.
Commands& commands() {
  static auto* const state = new Commands;
  return *state;
}

Commands& read_commands() {
  Commands& state = commands();
  if (state.is_read) return state;
  state.is_read = true;
  const char* const text = std::getenv("BACKPLANE_STUB");
  if (text != nullptr) execute(state, text);
  return state;
}

}  // namespace

int enter(const char* function) {
  std::unique_lock lock(commands().mutex);
  Commands& state = read_commands();
  ++state.calls[function];
  if (state.has("hang", function)) ++state.calls[std::string("hanging ") + function];
  state.changed.wait(lock, [&state, function] { return !state.has("hang", function); });
  if (!state.has("fail", function)) return kSuccess;
  state.failed = function;
  return kCommanded;
}

bool is_held(const std::string& function) {
  const std::lock_guard lock(commands().mutex);
  return read_commands().has("hold", function);
}

bool is_late(const std::string& function) {
  const std::lock_guard lock(commands().mutex);
  return read_commands().has("late", function);
}

bool takes_step() {
  const std::lock_guard lock(commands().mutex);
  std::string& left = read_commands().settings["steps"];
  const int steps = std::atoi(left.c_str());
  if (steps > 0) left = std::to_string(steps - 1);
  return steps > 0;
}

std::string setting(const std::string& name, const std::string& otherwise) {
  const std::lock_guard lock(commands().mutex);
  const auto& settings = read_commands().settings;
  const auto found = settings.find(name);
  return found == settings.end() ? otherwise : found->second;
}

std::string text_of(int code) {
  constexpr std::array texts = {"no error",          "invalid communicator", "invalid datatype",
                                "invalid reduction", "invalid request",      "invalid rank",
                                "invalid message",   "invalid key",          "message truncated",
                                "tag in use",        "invalid error handler"};
  if (code >= 0 && static_cast<size_t>(code) < texts.size()) return texts.at(static_cast<size_t>(code));
  const std::lock_guard lock(commands().mutex);
  return "a fault of " + commands().failed + ",\nas the test wants it";
}

}  // namespace stub

using namespace stub;

extern "C" {

__attribute__((visibility("default"))) void backplane_stub_command(const char* text) {
  const std::lock_guard lock(commands().mutex);
  execute(read_commands(), text);
  commands().changed.notify_all();
}

__attribute__((visibility("default"))) int backplane_stub_calls(const char* function) {
  const std::lock_guard lock(commands().mutex);
  return read_commands().calls[function];
}

__attribute__((visibility("default"))) int backplane_stub_count(const char* what) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const std::map<std::string, size_t> counts = {{"communicators", w.comms.size() - std::min<size_t>(w.comms.size(), 2)},
                                                {"groups", w.groups.size()},
                                                {"messages", w.messages.size()},
                                                {"requests", w.requests.size()},
                                                {"types", w.types.size()}};
  return static_cast<int>(counts.at(what));
}

__attribute__((visibility("default"))) const void* backplane_stub_memory(const char* function) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  for (auto request = w.order.rbegin(); request != w.order.rend(); ++request) {
    if ((*request)->function != function) continue;
    for (const Outgoing& each : (*request)->sends) {
      if (each.bytes > 0) return each.data;
    }
    for (const Incoming& each : (*request)->receives) {
      if (each.bytes > 0) return each.data;
    }
  }
  return nullptr;
}

__attribute__((visibility("default"))) int MPI_Comm_create_errhandler(void (*function)(Handle*, int*, ...),
                                                                      Handle* made) {
  *made = reinterpret_cast<Handle>(function);
  return enter("MPI_Comm_create_errhandler");
}

__attribute__((visibility("default"))) int MPI_Error_string(int code, char* text, int* size) {
  const std::string found = text_of(code);
  *size = static_cast<int>(found.copy(text, found.size()));
  text[*size] = '\0';
  return kSuccess;
}
}
