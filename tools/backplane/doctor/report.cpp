// SPDX-License-Identifier: Apache-2.0
#include "doctor/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "common/table.hpp"
#include "doctor/json.hpp"

namespace backplane::tool {
namespace {

std::string count_text(std::ptrdiff_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string paths_text(const Observations& seen) {
  if (seen.paths.empty()) return "";
  std::map<int, std::string> names;
  for (const Facts& each : seen.ranks) names[each.rank] = each.host;
  Table table({"FROM", "TO", "ADDRESS", "LATENCY", "BANDWIDTH"});
  for (const Path& path : seen.paths) {
    const bool is_reached = path.failure.empty();
    table.add({names[path.from], names[path.to], endpoint_text(path.at),
               is_reached ? fmt::format("{:.0f} us", path.latency * 1e6) : "-",
               is_reached ? fmt::format("{:.0f} MB/s", path.bandwidth * 1e-6) : path.failure});
  }
  return table.text() + "\n";
}

std::string summary(const Observations& seen, const Findings& findings) {
  const auto count = [&findings](Severity severity) {
    return std::count_if(findings.begin(), findings.end(),
                         [severity](const Finding& each) { return each.severity == severity; });
  };
  const auto hosts =
      std::count_if(seen.ranks.begin(), seen.ranks.end(), [](const Facts& each) { return each.is_whole; });
  return fmt::format("{}, {}: {}, {}, {}\n", count_text(hosts, "host"),
                     count_text(static_cast<std::ptrdiff_t>(seen.ranks.size()), "rank"),
                     count_text(count(Severity::kError), "error"), count_text(count(Severity::kWarning), "warning"),
                     count_text(count(Severity::kNote), "note"));
}

}  // namespace

std::string text_report(const Observations& seen, const Findings& findings) {
  std::string text;
  for (const Finding& each : findings) {
    const std::string where = each.hosts.empty() ? "" : join(each.hosts) + ": ";
    text += fmt::format("{:<8} {}{}: {}\n", severity_name(each.severity), printable(where), each.check,
                        printable(each.text));
  }
  if (!findings.empty()) text += "\n";
  return text + paths_text(seen) + summary(seen, findings);
}

std::string json_report(const Observations& seen, const Findings& findings) {
  const nlohmann::json report = {{"findings", findings},
                                 {"ranks", seen.ranks},
                                 {"silent", seen.silent},
                                 {"unfinished", seen.unfinished},
                                 {"paths", seen.paths}};
  return dump(report, 2) + "\n";
}

}  // namespace backplane::tool
