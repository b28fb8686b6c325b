// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "common/table.hpp"
#include "doctor/checks.hpp"

namespace backplane::tool {
namespace {

void append_findings(Findings& findings, Findings more) {
  std::move(more.begin(), more.end(), std::back_inserter(findings));
}

Findings absence_findings(const Observations& seen) {
  Findings findings;
  if (!seen.silent.empty()) {
    std::vector<std::string> ranks;
    for (const int rank : seen.silent) ranks.push_back(std::to_string(rank));
    findings.push_back({Severity::kError,
                        "ranks",
                        {},
                        fmt::format("{} {} did not report in time; check that the launchers run and reach MASTER_ADDR, "
                                    "or raise --timeout",
                                    ranks.size() == 1 ? "rank" : "ranks", join(ranks))});
  }
  if (!seen.unfinished.empty()) {
    findings.push_back({Severity::kError, "ranks", seen.unfinished,
                        "the measurement of the network did not end in time; check that the host still runs and "
                        "reaches MASTER_ADDR, or raise --timeout"});
  }
  return findings;
}

Findings merge_hosts(const Findings& findings) {
  Findings result;
  for (const Finding& each : findings) {
    const auto same = std::find_if(result.begin(), result.end(), [&each](const Finding& other) {
      return other.severity == each.severity && other.check == each.check && other.text == each.text;
    });
    if (same == result.end()) {
      result.push_back(each);
    } else {
      same->hosts.insert(same->hosts.end(), each.hosts.begin(), each.hosts.end());
    }
  }
  return result;
}

}  // namespace

Findings diagnose(const Observations& seen) {
  std::vector<Facts> hosts;
  std::copy_if(seen.ranks.begin(), seen.ranks.end(), std::back_inserter(hosts),
               [](const Facts& each) { return each.is_whole; });
  Findings findings = absence_findings(seen);
  for (const Facts& host : hosts) append_findings(findings, host_findings(host, hosts.size() == 1));
  append_findings(findings, job_findings(seen.ranks));
  append_findings(findings, network_findings(hosts, seen.paths));
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& left, const Finding& right) { return left.severity > right.severity; });
  return merge_hosts(findings);
}

}  // namespace backplane::tool
