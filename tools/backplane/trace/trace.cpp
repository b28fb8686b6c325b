// SPDX-License-Identifier: Apache-2.0
//
// backplane trace: the last operations of all ranks, from trace files or from a running job.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "backplane/backplane.h"
#include "commands.hpp"
#include "common/failure.hpp"
#include "common/files.hpp"
#include "trace/merge.hpp"

namespace backplane::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTraceFooter = R"(
Each rank keeps its last operations in memory. With BACKPLANE_TRACE_DIR it writes them to that directory when a group
fails, or when a file 'request' appears there. 'backplane trace' merges the files by time, and prints which ranks are
missing or behind and the first collective in which ranks differ.

Exit codes: 0; 1 if a trace cannot be read or the job does not answer; 2 wrong use.

Examples:
  backplane trace /tmp/traces
  backplane trace --store 10.0.0.1:29500 --job run-29500
  backplane trace /tmp/traces --format chrome -o trace.json)";

struct TraceSettings {
  std::vector<std::string> paths;
  std::string store;
  std::string job;
  std::string group = "world";
  double timeout = 5;
  std::string format = "table";
  std::string output;
  size_t last = 40;
};

Json parse(const std::string& text, const std::string& origin) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw Failure(kFailed, fmt::format("{} is not JSON", origin));
  return json;
}

void read_traces(const std::filesystem::path& path, std::vector<TracedRank>& ranks) {
  const Json json = parse(read_file(path.string()), path.string());
  if (json.is_object() && json.contains("traces")) {
    for (const Json& one : json["traces"]) ranks.push_back(read_trace(one, path.string()));
  } else {
    ranks.push_back(read_trace(json, path.string()));
  }
}

std::vector<TracedRank> read_paths(const std::vector<std::string>& paths) {
  std::vector<TracedRank> ranks;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) throw Failure(kWrongUse, fmt::format("{} does not exist", path));
    if (!std::filesystem::is_directory(path, ignored)) {
      read_traces(path, ranks);
      continue;
    }
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
    if (files.empty()) {
      throw Failure(kFailed,
                    fmt::format("no trace files in {}; ranks with BACKPLANE_TRACE_DIR={} write one when a group "
                                "fails, or when {}/request is touched",
                                path, path, path));
    }
    std::sort(files.begin(), files.end());
    for (const auto& file : files) read_traces(file, ranks);
  }
  return ranks;
}

std::vector<TracedRank> ask_job(const TraceSettings& settings) {
  const size_t colon = settings.store.rfind(':');
  char* end = nullptr;
  const std::string port = colon == std::string::npos ? "" : settings.store.substr(colon + 1);
  const unsigned long number = std::strtoul(port.c_str(), &end, 10);
  if (port.empty() || *end != '\0' || number == 0 || number > 65535) {
    throw Failure(kWrongUse, fmt::format("--store {}: expected HOST:PORT", settings.store));
  }
  const auto timeout_ns = static_cast<int64_t>(settings.timeout * 1e9);
  bp_error err;
  bp_error_init(&err);
  bp_store* store = nullptr;
  if (bp_store_connect(settings.store.substr(0, colon).c_str(), static_cast<uint16_t>(number), settings.job.c_str(),
                       timeout_ns, &store, &err) != BP_OK) {
    throw Failure(kFailed, err.text);
  }
  const std::unique_ptr<bp_store, void (*)(bp_store*)> owner(store, bp_store_release);
  char* text = nullptr;
  if (bp_store_trace(store, settings.group.c_str(), timeout_ns, &text, &err) != BP_OK) {
    throw Failure(kFailed, fmt::format("cannot get the trace of group '{}' from the store at {}: {}", settings.group,
                                       settings.store, err.text));
  }
  const std::unique_ptr<char, void (*)(void*)> text_owner(text, bp_free);
  std::vector<TracedRank> ranks;
  const Json reply = parse(text, "the reply of the job");
  for (const Json& one : reply.at("traces")) ranks.push_back(read_trace(one, "the reply of the job"));
  if (ranks.empty()) throw Failure(kFailed, fmt::format("no rank of group '{}' answered", settings.group));
  return ranks;
}

Json as_json(const std::vector<TracedRank>& ranks) {
  Json list = Json::array();
  for (const TraceEvent& event : merged(ranks)) {
    list.push_back({{"group", event.group},
                    {"rank", event.rank},
                    {"number", event.seq},
                    {"operation", event.operation},
                    {"state", event.state},
                    {"begin_ns", event.begin_ns},
                    {"end_ns", event.end_ns}});
  }
  return {{"remarks", remarks(ranks)}, {"events", std::move(list)}};
}

void show(const TraceSettings& settings) {
  if (settings.paths.empty() == settings.store.empty()) {
    throw Failure(kWrongUse, "name either trace files or directories, or a running job by --store");
  }
  const std::vector<TracedRank> ranks = settings.store.empty() ? read_paths(settings.paths) : ask_job(settings);
  const std::string text = settings.format == "chrome" ? chrome_trace(ranks)
                           : settings.format == "json"
                               ? as_json(ranks).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                               : trace_table(ranks, settings.last);
  if (settings.output.empty()) {
    fmt::print("{}", text);
    return;
  }
  write_file(settings.output, text);
}

}  // namespace

void add_trace(CLI::App& app) {
  auto settings = std::make_shared<TraceSettings>();
  CLI::App* command = app.add_subcommand("trace", "Show the last operations of the ranks of a job");
  command->add_option("path", settings->paths, "Trace files, or directories with trace files (BACKPLANE_TRACE_DIR)")
      ->option_text("FILE");
  command->footer(kTraceFooter);
  command->add_option("--store", settings->store, "Ask the running job with this store")->option_text("HOST:PORT");
  command->add_option("--job", settings->job, "Id of that job")->option_text("ID");
  command->add_option("--group", settings->group, "Name of that job's first group")->option_text("NAME (world)");
  command->add_option("--timeout", settings->timeout, "Time limit for the answers of its ranks")
      ->option_text("SECONDS (5)");
  command->add_option("--format", settings->format, "table, json, or chrome for Perfetto and chrome://tracing")
      ->check(CLI::IsMember({"table", "json", "chrome"}))
      ->option_text("FORMAT (table)");
  command->add_option("--last", settings->last, "Show the last N operations in the table")->option_text("N (40)");
  command->add_option("-o,--output", settings->output, "Write to this file instead of stdout")->option_text("FILE");
  command->callback([settings] { show(*settings); });
}

}  // namespace backplane::tool
