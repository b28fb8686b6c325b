// SPDX-License-Identifier: Apache-2.0
#include "group/trace.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "environment.hpp"
#include "group/operation.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"
#include "reduce/combine.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

std::optional<std::string> trace_directory() { return trusted_variable("BACKPLANE_TRACE_DIR"); }

nlohmann::ordered_json json_of(const Recorder::Entry& entry) {
  nlohmann::ordered_json item = {{"number", entry.number}, {"op", op_name(entry.kind)}, {"seq", entry.seq}};
  if (entry.kind != BP_BARRIER) {
    item["dtype"] = dtype_name(entry.dtype);
    item["count"] = entry.count;
  }
  if (reduces(entry.kind)) item["reduce_op"] = reduce_op_name(entry.reduce_op);
  if (!collective(entry.kind)) {
    item["peer"] = entry.rank;
    item["tag"] = entry.tag;
  } else if (entry.rank >= 0) {
    item["root"] = entry.rank;
  }
  item["state"] = entry.end_ns == 0 ? "in flight" : entry.status == BP_OK ? "done" : "failed";
  item["status"] = entry.status;
  item["begin_ns"] = entry.begin_ns;
  item["end_ns"] = entry.end_ns;
  return item;
}

}  // namespace

void GroupTrace::check_directory() {
  const auto directory = trace_directory();
  if (!directory) return;
  struct stat status = {};
  const bool is_there = stat(directory->c_str(), &status) == 0;
  const bool is_directory = is_there && S_ISDIR(status.st_mode);
  if (is_directory && access(directory->c_str(), W_OK | X_OK) == 0) return;
  warn_once(fmt::format(
      "BACKPLANE_TRACE_DIR is {}, where this process cannot write traces ({}); create the directory, or "
      "correct the variable",
      core::quoted(*directory), is_there && !is_directory ? "it is not a directory" : std::strerror(errno)));
}

void GroupTrace::set_calls(std::function<std::string()> calls) {
  const std::lock_guard lock(mutex_);
  calls_ = std::move(calls);
}

std::string GroupTrace::json() const {
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const Recorder::Entry& entry : recorder_.entries()) entries.push_back(json_of(entry));
  std::function<std::string()> calls;
  {
    const std::lock_guard lock(mutex_);
    calls = calls_;
  }
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t wall_ns = static_cast<int64_t>(wall.tv_sec) * 1000000000 + wall.tv_nsec;
  const std::optional<Error> cause = state_.cause();
  nlohmann::ordered_json trace{{"group", config_.name},
                               {"key", config_.key},
                               {"rank", config_.rank},
                               {"world_size", config_.world_size},
                               {"global_ranks", config_.global_ranks},
                               {"identity", process_identity()},
                               {"backend", backend_id(config_, BP_HOST)},
                               {"broken", cause ? cause->what() : ""},
                               {"clock", {{"monotonic_ns", monotonic_ns()}, {"realtime_ns", wall_ns}}},
                               {"entries", std::move(entries)}};
  if (calls) trace.update(nlohmann::ordered_json::parse(calls()));
  return trace.dump();
}

void GroupTrace::write_file(const std::string& why) const {
  const auto directory = trace_directory();
  if (!directory) return;
  const std::string path = fmt::format("{}/{}.rank{}.json", *directory, config_.key, config_.rank);
  const std::string draft = fmt::format("{}.{}", path, getpid());
  std::remove(draft.c_str());                          // of an earlier process with this number
  std::FILE* file = std::fopen(draft.c_str(), "wxe");  // does not follow a link
  const std::string text = json();
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (written && closed && std::rename(draft.c_str(), path.c_str()) == 0) return;
  write_log(BP_LOG_WARN, fmt::format("cannot write the trace of group '{}' to {} ({}): {}", config_.name, path, why,
                                     std::strerror(errno)));
  std::remove(draft.c_str());
}

void GroupTrace::write_if_requested() {
  const auto directory = trace_directory();
  struct stat status = {};
  if (!directory || stat(fmt::format("{}/request", *directory).c_str(), &status) != 0) return;
  const int64_t requested = status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec;
  if (requested == std::exchange(request_time_ns_, requested)) return;
  write_file("requested");
}

}  // namespace backplane::core
