// SPDX-License-Identifier: Apache-2.0
//
// backplane info: the description of one backend.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "backplane/backplane.h"
#include "commands.hpp"
#include "common/failure.hpp"
#include "common/query.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

using Json = nlohmann::ordered_json;
using Strings = std::vector<std::string>;

struct InfoSettings {
  std::string backend;
  bool json = false;
};

struct Description {
  const char* name;
  const char* words;
};
constexpr Description kDescriptions[] = {{"process_group", "process groups"},
                                         {"rpc", "RPC agents"},
                                         {"layer", "a layer over another backend"},
                                         {"tags", "send and recv match tags"},
                                         {"any_source", "recv from any source"},
                                         {"any_tag", "recv with any tag"},
                                         {"autonomous", "operations progress without the caller polling"},
                                         {"threads", "ranks may be threads of one process"},
                                         {"one_process", "all ranks of a group are in one process"},
                                         {"bounded", "keeps deadlines itself"},
                                         {"authenticates", "authenticates peers in jobs with a secret"},
                                         {"local", "leaves the process-wide default group alone"},
                                         {"rpc_over_group", "its messages travel over a process group"},
                                         {"blocking_init", "its start cannot be interrupted"},
                                         {"one_world", "a process belongs to one world"}};

constexpr const char* kInfoFooter = R"(
Exit codes: 0; 1 if the backend is unknown or cannot be loaded; 2 wrong use.

Examples:
  backplane info zmq
  backplane info gloo --json)";

std::string in_words(const Json& names) {
  Strings words;
  for (const std::string name : names) {
    const auto* const known =
        std::find_if(std::begin(kDescriptions), std::end(kDescriptions),
                     [&name](const Description& description) { return name == description.name; });
    words.push_back(known == std::end(kDescriptions) ? name : fmt::format("{} ({})", name, known->words));
  }
  return words.empty() ? "none" : join(words);
}

// In the order of BP_BARRIER, BP_BROADCAST, ...
constexpr std::array<const char*, BP_OP_COUNT> kOperations = {
    "barrier",    "broadcast",   "reduce",     "all_reduce",  "gather",         "gatherv",
    "scatter",    "scatterv",    "all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv",
    "all_to_all", "all_to_allv", "send",       "recv",        "scan",           "exscan"};

bool moves_host_bytes(const Json& capabilities, const char* operation) {
  return std::any_of(capabilities.begin(), capabilities.end(), [operation](const Json& c) {
    const auto has = [&c](const char* list, const char* item) {
      return std::find(c[list].begin(), c[list].end(), item) != c[list].end();
    };
    return c["op"] == operation && has("dtypes", "u8") && has("memory", "cpu");
  });
}

// Operations that the backend lacks and the core implements over its send and recv, which need u8 in host memory.
Strings completed_by_core(const Json& info) {
  const Json& capabilities = info["capabilities"];
  Strings result;
  if (!moves_host_bytes(capabilities, "send") || !moves_host_bytes(capabilities, "recv")) return result;
  for (const char* operation : kOperations) {
    const bool native = std::any_of(capabilities.begin(), capabilities.end(),
                                    [operation](const Json& c) { return c["op"] == operation; });
    if (!native) result.emplace_back(operation);
  }
  return result;
}

std::string bound(const Json& number) {
  return number.is_number_integer() ? std::to_string(number.get<int64_t>())
                                    : fmt::format("{:.12g}", number.get<double>());
}

std::string range_of(const Json& option) {
  if (option.contains("choices")) return option["choices"].get<std::string>();
  if (!option.contains("min")) return "-";
  return fmt::format("{}..{}", bound(option["min"]), bound(option["max"]));
}

std::string options_text(const Json& options) {
  if (options.empty()) return "\nOptions: none\n";
  Table table({"KEY", "TYPE", "DEFAULT", "RANGE", "HELP"});
  for (const Json& option : options) {
    Strings help = {option.value("help", "")};
    if (option.value("secret", false)) help.emplace_back("secret");
    if (option.value("same_on_all_ranks", false)) help.emplace_back("same on all ranks");
    if (help.front().empty()) help.erase(help.begin());
    std::string value = option.value("required", false) ? "(required)" : option.value("default", "-");
    if (value.empty()) value = "\"\"";
    table.add({option["key"], option["type"], value, range_of(option), join(help)});
  }
  return "\nOptions:\n" + table.text("  ");
}

std::string dtypes_text(const Json& dtypes) {
  if (dtypes.size() == BP_DTYPE_COUNT) return "all";
  return dtypes.empty() ? "-" : join(dtypes.get<Strings>(), " ");
}

std::string reduce_ops_text(const Json& ops) {
  if (ops.size() == BP_REDUCE_OP_COUNT) return "all";
  return ops.empty() ? "-" : join(ops.get<Strings>(), " ");
}

std::string capabilities_text(const Json& info, const Strings& completed) {
  Table table({"OPERATION", "MEMORY", "REDUCE OPS", "DTYPES"});
  for (const Json& c : info["capabilities"]) {
    const std::string memory = join(c["memory"].get<Strings>(), " ");
    table.add({c["op"], memory.empty() ? "-" : memory, reduce_ops_text(c["reduce_ops"]), dtypes_text(c["dtypes"])});
  }
  std::string text =
      info["capabilities"].empty() ? "\nNative operations: none\n" : "\nNative operations:\n" + table.text("  ");
  if (!completed.empty()) text += fmt::format("\nImplemented by the core over send and recv:\n  {}\n", join(completed));
  return text;
}

std::string describe(const Json& info, const Strings& completed) {
  const auto line = [&info](const char* title, const char* key) {
    const std::string value = info.value(key, "");
    return value.empty() ? std::string() : fmt::format("{:<9}{}\n", title, printable(value));
  };
  std::string text = fmt::format("{} {}\n", info["id"].get<std::string>(), info["version"].get<std::string>());
  text += line("Name", "name") + line("Summary", "summary") + line("Vendor", "vendor") + line("File", "file") +
          line("ABI", "abi") + line("Auth", "auth");
  text += fmt::format("{:<9}{}\n{:<9}{}\n", "Kinds", in_words(info["kinds"]), "Flags", in_words(info["flags"]));
  return text + options_text(info["options"]) + capabilities_text(info, completed);
}

}  // namespace

void add_info(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<InfoSettings>();
  CLI::App* command = app.add_subcommand("info", "Describe one backend: options, operations, versions");
  command->add_option("name", settings->backend, "Id of the backend, as in 'backplane list'; upper or lower case")
      ->required()
      ->option_text("BACKEND");
  command->footer(kInfoFooter);
  command->add_flag("--json", settings->json, "Print JSON");
  command->callback([settings, &exit_code] {
    const QueryReply reply = query(kInfo, settings->backend, "while its plugin was loaded", kQueryTimeout);
    if (reply.status == BP_INTERNAL) {
      throw Failure(kFailed, fmt::format("backend {}: {}", settings->backend, printable(reply.text)));
    }
    if (reply.status != BP_OK) throw Failure(kFailed, printable(reply.text));
    Json info = Json::parse(reply.text);
    const Strings completed = completed_by_core(info);
    if (settings->json) {
      info["completed"] = completed;
      fmt::print("{}\n", info.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
      fmt::print("{}", describe(info, completed));
    }
    exit_code = 0;
  });
}

}  // namespace backplane::tool
