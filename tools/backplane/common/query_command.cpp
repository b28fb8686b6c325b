// SPDX-License-Identifier: Apache-2.0
//
// The child's side of query(): loads a plugin, runs its code and writes the reply to a pipe.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "backplane/backplane.h"
#include "commands.hpp"
#include "common/failure.hpp"
#include "common/query.hpp"

namespace backplane::tool {
namespace {

struct Request {
  std::string kind;  // kProbe ...
  std::string backend;
};

// The lines that a probe logs; any thread.
struct Remarks {
  std::mutex mutex;
  std::string text;
};

void keep_remarks(void* ctx, uint32_t level, const char* line) {
  auto* const remarks = static_cast<Remarks*>(ctx);
  if (level == BP_LOG_INFO) {
    const std::lock_guard lock(remarks->mutex);
    remarks->text += fmt::format("{}{}", remarks->text.empty() ? "" : "; ", line);
  } else if (level >= BP_LOG_WARN) {
    fmt::print(stderr, "backplane: {}\n", line);
  }
}

nlohmann::json run(const Request& request) {
  bp_error err;
  bp_error_init(&err);
  std::string text;
  int32_t status = BP_OK;
  if (request.kind == kProbe) {
    static Remarks remarks;  // a thread that the probe left may still be inside keep_remarks
    bp_set_log(keep_remarks, &remarks);
    status = bp_registry_probe(nullptr, request.backend.c_str(), &err);
    bp_set_log(nullptr, nullptr);
    const std::lock_guard lock(remarks.mutex);
    text = remarks.text;
  } else {
    char* json = nullptr;
    status = request.kind == kFile ? bp_plugin_file_info(request.backend.c_str(), &json, &err)
                                   : bp_registry_info(nullptr, request.backend.c_str(), &json, &err);
    if (status == BP_OK) text = json;
    bp_free(json);
  }
  return {{"status", status}, {"text", status == BP_OK ? text : err.text}};
}

[[noreturn]] void serve(const Request& request) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);  // a crash of the plugin is reported, a core file would not help
  const std::string text = run(request).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  size_t sent = 0;
  while (sent <= text.size()) {  // with the NUL
    const ssize_t size = ::write(kReplyDescriptor, text.c_str() + sent, text.size() + 1 - sent);
    if (size < 0 && errno != EINTR) break;
    if (size > 0) sent += static_cast<size_t>(size);
  }
  ::_exit(0);  // without destructors of the plugin
}

}  // namespace

void add_query(CLI::App& app) {
  auto request = std::make_shared<Request>();
  CLI::App* command = app.add_subcommand(kQueryCommand)->group("");
  command->add_option("kind", request->kind)->required();
  command->add_option("backend", request->backend)->required();
  command->callback([request] {
    struct stat status = {};
    const bool is_child = ::fstat(kReplyDescriptor, &status) == 0 && S_ISFIFO(status.st_mode) &&
                          (::fcntl(kReplyDescriptor, F_GETFL) & O_ACCMODE) == O_WRONLY;
    if (!is_child) {
      throw Failure(kWrongUse, "this subcommand is for the command's own use");
    }
    serve(*request);
  });
}

}  // namespace backplane::tool
