// SPDX-License-Identifier: Apache-2.0
//
// backplane list: backends, rejected plugin files and searched directories. Runs plugin code with --probe alone.
#include <fmt/format.h>

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

struct ListSettings {
  bool json = false;
  bool probe = false;
  double probe_timeout = static_cast<double>(kQueryTimeout.count());
};

constexpr const char* kListFooter = R"(
Prints one line per backend: id, version, kinds (process_group, rpc, layer), whether it authenticates peers in jobs with a
secret (AUTH), ABI version and file. Rejected plugin files follow with the reason, then the searched directories.

Exit codes: 0; 1 if the registry cannot be read; 2 wrong use.

Examples:
  backplane list
  backplane list --probe --probe-timeout 2
  backplane list --json | jq -r '.backends[].id')";

Json read_list() {
  bp_error err;
  bp_error_init(&err);
  char* text = nullptr;
  if (bp_registry_list(nullptr, &text, &err) != BP_OK) throw Failure(kFailed, err.text);
  const std::unique_ptr<char, void (*)(void*)> owner(text, bp_free);
  return Json::parse(text);
}

void probe_all(Json& list, double timeout) {
  const auto limit = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(timeout));
  for (Json& backend : list["backends"]) {
    if (backend["state"] != "available") continue;
    const QueryReply reply = query(kProbe, backend["id"].get<std::string>(), "while probing", limit);
    backend["viable"] = reply.status == BP_OK;
    if (!reply.text.empty()) backend["viability"] = reply.text;
  }
}

// A reason may begin with the state, or continue it: "by FILE".
std::string why_unavailable(const std::string& state, const std::string& reason) {
  if (reason.starts_with(state)) return reason;
  return fmt::format("{}{} {}", state, reason.starts_with("by ") ? "" : ":", reason);
}

std::string backends_text(const Json& list, bool probed) {
  if (list["backends"].empty()) return "No backends were found.\n";
  std::vector<std::string> header = {"ID", "VERSION", "KINDS", "AUTH", "ABI", "FILE"};
  if (probed) header.insert(header.begin() + 1, "VIABLE");
  Table table(header);
  for (const Json& backend : list["backends"]) {
    std::vector<std::string> row = {
        backend["id"],   backend["version"], join(backend["kinds"].get<std::vector<std::string>>()),
        backend["auth"], backend["abi"],     backend["file"]};
    const bool asked = backend.contains("viable");
    if (probed) row.insert(row.begin() + 1, !asked ? "-" : backend["viable"].get<bool>() ? "yes" : "no");
    table.add(std::move(row));
    if (backend["state"] != "available") {
      table.note(why_unavailable(backend["state"], backend.value("reason", "no reason given")));
    }
    if (backend.contains("viability")) {
      const char* const what = backend["viable"].get<bool>() ? "viable" : "not viable";
      table.note(fmt::format("{}: {}", what, backend["viability"].get<std::string>()));
    }
  }
  return table.text();
}

std::string rejected_text(const Json& list) {
  if (list["rejected"].empty()) return {};
  std::string text = "\nRejected files:\n";
  for (const Json& file : list["rejected"]) {
    text += fmt::format("  {}\n      {}\n", printable(file["file"].get<std::string>()),
                        printable(file["reason"].get<std::string>()));
  }
  return text;
}

std::string directories_text(const Json& list) {
  Table table({"DIRECTORY", "FROM", "STATE"});
  for (const Json& directory : list["directories"]) {
    const std::string state = directory["state"];
    const std::string reason = directory.value("reason", "");
    const char* joint = state == "repeated" ? " of " : ": ";
    table.add({directory["path"], directory["origin"], reason.empty() ? state : state + joint + reason});
  }
  return "\nDirectories searched, the first match wins:\n" + table.text("  ");
}

}  // namespace

void add_list(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<ListSettings>();
  CLI::App* command = app.add_subcommand("list", "List the backends that are installed, without running their code");
  command->footer(kListFooter);
  command->add_flag("--json", settings->json, "Print JSON");
  command->add_flag("--probe", settings->probe,
                    "Test whether each backend is viable on this machine, in a process per backend");
  command->add_option("--probe-timeout", settings->probe_timeout, "Time limit per backend for --probe")
      ->check(CLI::Range(0.001, 1e6))
      ->option_text("SECONDS (10)");
  command->callback([settings, &exit_code] {
    Json list = read_list();
    if (settings->probe) probe_all(list, settings->probe_timeout);
    if (settings->json) {
      fmt::print("{}\n", list.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
      fmt::print("{}{}{}", backends_text(list, settings->probe), rejected_text(list), directories_text(list));
    }
    exit_code = 0;
  });
}

}  // namespace backplane::tool
