// SPDX-License-Identifier: Apache-2.0
#include "check/subject.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "backplane/backplane.h"
#include "common/aside.hpp"
#include "common/failure.hpp"
#include "common/process.hpp"
#include "common/question.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

using Json = nlohmann::ordered_json;

// Plugin code may do anything to the process that asked for it: so that is not this one.
Answer ask_aside(const char* question, const std::string& about, double patience) {
  const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(kAnswerTime * patience);
  const Aside aside = run_aside(
      [question, &about, time](const Say&) {
        ::dup2(open_null_device().get(), STDERR_FILENO);  // the suite tells what a plugin prints, and how much of it
        const Answer answer = ask(question, about, "while the core loaded it", time);
        return std::to_string(answer.status) + " " + answer.text;
      },
      {}, 2 * time + kAnswerTime);
  if (!aside.complete) {
    return {BP_INTERNAL,
            fmt::format("the process that loaded it {}; a plugin must leave other processes alone", aside.trouble)};
  }
  const size_t space = aside.result.find(' ');
  return {std::atoi(aside.result.c_str()), aside.result.substr(space + 1)};
}

bool is_path(const std::string& what) { return what.find('/') != std::string::npos || what.ends_with(".so"); }

// Options are checked against what the backend declares, as the core would.
void check_options(const Json& info, const std::map<std::string, std::string>& options) {
  for (const auto& [key, value] : options) {
    const Json& declared = info["options"];
    const bool known = std::any_of(declared.begin(), declared.end(),
                                   [&name = key](const Json& option) { return option["key"] == name; });
    if (known) continue;
    std::string keys;
    for (const Json& option : declared) keys += (keys.empty() ? "" : ", ") + option["key"].get<std::string>();
    throw Failure(kWrongUse, fmt::format("backend {} has no option {}; it has {}", info["id"].get<std::string>(),
                                         printable(key), keys.empty() ? "none" : keys));
  }
}

// The suite calls a backend bare, as itself and from no core: it would have nothing for a layer to lie over.
void refuse_layer(const Json& info) {
  const Json& kinds = info["kinds"];
  if (kinds.size() != 1 || kinds.front() != "layer") return;
  const std::string id = info["id"].get<std::string>();
  throw Failure(kWrongUse, fmt::format("{} is a layer (name it in BACKPLANE_LAYERS), and only backends are checked; "
                                       "check the one it is to lie over, e.g. 'backplane check zmq', and run a "
                                       "program with BACKPLANE_LAYERS={}",
                                       id, id));
}

// The core's description of one backend of a file.
const Json& backend_of(const Json& backends, const std::string& id, const std::string& path) {
  if (id.empty()) return backends.front();
  std::string ids;
  for (const Json& each : backends) {
    if (each["id"] == id) return each;
    ids += (ids.empty() ? "" : ", ") + each["id"].get<std::string>();
  }
  throw Failure(kWrongUse, fmt::format("{} has no backend {}; it has {}", printable(path), printable(id), ids));
}

FoundSubject file_subject(const std::string& path, const std::string& backend,
                          const std::map<std::string, std::string>& options, double patience) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    throw Failure(kWrongUse, fmt::format("cannot check {}: {}", printable(path), errno_text(errno)));
  }
  if (S_ISDIR(status.st_mode)) {
    throw Failure(kWrongUse, fmt::format("{} is a directory; name a plugin file in it, or a backend", printable(path)));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Failure(kWrongUse,
                  fmt::format("{} is not a regular file; name a plugin file, or a backend", printable(path)));
  }
  FoundSubject found;
  // dlopen searches its own directories for a name without a slash.
  found.subject.path = std::filesystem::absolute(path).string();
  found.subject.backend = backend;
  found.subject.options = options;
  const Answer answer = ask_aside(kFile, found.subject.path, patience);
  if (answer.status != BP_OK) {
    found.refusal = answer.text;
    return found;
  }
  const Json backends = Json::parse(answer.text, nullptr, false);
  if (!backends.is_array() || backends.empty()) {
    found.refusal = "its description makes no sense";
    return found;
  }
  const Json& chosen = backend_of(backends, backend, path);
  refuse_layer(chosen);
  check_options(chosen, options);
  return found;
}

// The plugin that a linked-in backend would be if it came from a file.
const bp_plugin* built_in(const std::string& name) {
  bp_error err;
  bp_error_init(&err);
  const bp_backend_type* type = nullptr;
  if (bp_backend_lookup(nullptr, name.c_str(), &type, &err) != BP_OK) throw Failure(kFailed, err.text);
  static const bp_backend* backends[1];
  backends[0] = bp_backend_type_descriptor(type);
  static const bp_plugin plugin = {
      sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "Backplane (built in)", backends, 1, 0};
  return &plugin;
}

// Where the file of a backend is that the core knows and refuses; empty if there is none.
std::string refused_file(const std::string& name) {
  bp_error err;
  bp_error_init(&err);
  char* text = nullptr;
  if (bp_registry_list(nullptr, &text, &err) != BP_OK) throw Failure(kFailed, err.text);
  const std::unique_ptr<char, void (*)(void*)> owner(text, bp_free);
  const Json list = Json::parse(text);
  for (const Json& file : list["rejected"]) {
    const std::string path = file["file"];
    if (std::filesystem::path(path).filename() == "backplane_" + name + ".so") return path;
  }
  for (const Json& backend : list["backends"]) {
    const std::string path = backend["file"];
    if (backend["id"] == name && path.starts_with('/')) return path;
  }
  return {};
}

FoundSubject named_subject(const std::string& name, const std::string& backend,
                           const std::map<std::string, std::string>& options, double patience) {
  const Answer answer = ask_aside(kInfo, name, patience);
  FoundSubject found;
  found.subject.options = options;
  if (answer.status != BP_OK) {
    found.subject.path = refused_file(name);
    if (found.subject.path.empty()) throw Failure(kWrongUse, printable(answer.text));
    found.subject.backend = name;
    found.refusal = answer.text;
    return found;
  }
  const Json info = Json::parse(answer.text);
  const std::string id = info["id"];
  if (!backend.empty() && backend != id) {
    throw Failure(kWrongUse, fmt::format("{} and --backend {} are two backends; name one of them", printable(name),
                                         printable(backend)));
  }
  refuse_layer(info);
  check_options(info, options);
  const std::string file = info["file"];
  found.subject.backend = id;
  if (file.starts_with('/')) {
    found.subject.path = file;
  } else {
    found.subject.entry = built_in(name);
  }
  return found;
}

}  // namespace

FoundSubject find_subject(const std::string& what, const std::string& backend,
                          const std::map<std::string, std::string>& options, double patience) {
  return is_path(what) ? file_subject(what, backend, options, patience)
                       : named_subject(what, backend, options, patience);
}

}  // namespace backplane::tool
