// SPDX-License-Identifier: Apache-2.0
#include "check/subject.hpp"

#include <fcntl.h>
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
#include <sstream>

#include "backplane/backplane.h"
#include "common/failure.hpp"
#include "common/query.hpp"
#include "common/subprocess.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

using Json = nlohmann::ordered_json;

// Plugin code may signal its parent process, so a subprocess runs the query.
QueryReply query_subprocess(const char* kind, const std::string& about, double timeout_scale) {
  const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(kQueryTimeout * timeout_scale);
  const SubprocessResult child = run_subprocess(
      [kind, &about, time](const WriteLine&) {
        ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);  // the suite reports what a plugin prints
        const QueryReply reply = query(kind, about, "while the core loaded it", time);
        return std::to_string(reply.status) + " " + reply.text;
      },
      {}, 2 * time + kQueryTimeout);
  if (!child.complete) {
    return {BP_INTERNAL,
            fmt::format("the process that loaded it {}; a plugin must not signal other processes", child.error)};
  }
  const size_t space = child.result.find(' ');
  return {std::atoi(child.result.c_str()), child.result.substr(space + 1)};
}

bool is_path(const std::string& what) { return what.find('/') != std::string::npos || what.ends_with(".so"); }

// Checks options against those that the backend declares, as the core does.
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

// The suite calls a backend directly. A layer needs another backend below it.
void refuse_layer(const Json& info) {
  const Json& kinds = info["kinds"];
  if (kinds.size() != 1 || kinds.front() != "layer") return;
  const std::string id = info["id"].get<std::string>();
  throw Failure(kWrongUse, fmt::format("{} is a layer, and only backends can be checked; check the backend below it, "
                                       "e.g. 'backplane check zmq', and test the layer by running a program with "
                                       "BACKPLANE_LAYERS={}",
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
                          const std::map<std::string, std::string>& options, double timeout_scale) {
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
  // dlopen searches the library path for a name without a slash.
  found.subject.path = std::filesystem::absolute(path).string();
  found.subject.backend = backend;
  found.subject.options = options;
  const QueryReply reply = query_subprocess(kFile, found.subject.path, timeout_scale);
  if (reply.status != BP_OK) {
    found.refusal = reply.text;
    found.may_load = reply.status == BP_INTERNAL;
    return found;
  }
  const Json backends = Json::parse(reply.text, nullptr, false);
  if (!backends.is_array() || backends.empty()) {
    found.refusal = "its description is malformed";
    found.may_load = true;
    return found;
  }
  const Json& chosen = backend_of(backends, backend, path);
  refuse_layer(chosen);
  check_options(chosen, options);
  return found;
}

// A plugin table for a backend that is linked into the core.
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

// Path of the file of a backend that the core refuses; empty if there is none.
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
                           const std::map<std::string, std::string>& options, double timeout_scale) {
  const QueryReply reply = query_subprocess(kInfo, name, timeout_scale);
  FoundSubject found;
  found.subject.options = options;
  if (reply.status != BP_OK) {
    found.subject.path = refused_file(name);
    if (found.subject.path.empty()) throw Failure(kWrongUse, printable(reply.text));
    found.subject.backend = name;
    found.refusal = reply.text;
    found.may_load = reply.status == BP_INTERNAL;
    return found;
  }
  const Json info = Json::parse(reply.text);
  const std::string id = info["id"];
  if (!backend.empty() && backend != id) {
    throw Failure(kWrongUse, fmt::format("{} and --backend {} name different backends; name one of them",
                                         printable(name), printable(backend)));
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

// "shm+gloo?iface=lo". The core parses the options.
FoundSubject composite_subject(const std::string& name, const std::map<std::string, std::string>& options,
                               double timeout_scale) {
  if (!options.empty()) {
    throw Failure(kWrongUse, fmt::format("--option {}: write the options of a composite behind its backends, as in "
                                         "'shm+gloo?iface=lo'",
                                         printable(options.begin()->first)));
  }
  FoundSubject found;
  std::istringstream parts(name);
  for (std::string part; found.refusal.empty() && std::getline(parts, part, '+');) {
    found = named_subject(part.substr(0, part.find('?')), "", {}, timeout_scale);
  }
  found.subject = {};
  found.subject.backend = name;
  found.is_composite = true;
  return found;
}

}  // namespace

FoundSubject find_subject(const std::string& what, const std::string& backend,
                          const std::map<std::string, std::string>& options, double timeout_scale) {
  if (is_path(what)) return file_subject(what, backend, options, timeout_scale);
  if (what.find('+') != std::string::npos) return composite_subject(what, options, timeout_scale);
  return named_subject(what, backend, options, timeout_scale);
}

}  // namespace backplane::tool
