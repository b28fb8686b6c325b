// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "common/table.hpp"
#include "doctor/checks.hpp"

namespace backplane::tool {
namespace {

constexpr double kClockTolerance = 1;     // seconds
constexpr double kSlowFraction = 1 / 3.;  // of the median bandwidth
constexpr size_t kFewestRates = 3;        // from which a median is computed
constexpr size_t kNamedPairs = 4;         // of those that are slow
constexpr const char* kFirewallAdvice = "check routes and firewalls, which must allow TCP to unprivileged ports";

class NetworkChecks {
 public:
  NetworkChecks(const std::vector<Facts>& hosts, const std::vector<Path>& paths) {
    for (const Facts& each : hosts) hosts_[each.rank] = &each;
    for (const Path& path : paths) pairs_[{path.from, path.to}].push_back(&path);
  }

  Findings run() {
    for (const auto& [pair, paths] : pairs_) {
      check_reachability(host(pair.first), host(pair.second), paths);
      if (pair.first == hosts_.begin()->first) check_clock(host(pair.first), host(pair.second), paths);
    }
    check_bandwidth();
    return std::move(findings_);
  }

 private:
  using Paths = std::vector<const Path*>;

  const Facts& host(int rank) const { return *hosts_.at(rank); }

  void add(Severity severity, const char* check, const Facts& where, std::string text) {
    findings_.push_back({severity, check, {where.host}, std::move(text)});
  }

  static const Path* fastest(const Paths& paths) {
    const Path* found = nullptr;
    for (const Path* each : paths) {
      if (each->failure.empty() && (found == nullptr || each->bandwidth > found->bandwidth)) found = each;
    }
    return found;
  }

  void check_reachability(const Facts& from, const Facts& to, const Paths& paths) {
    std::vector<std::string> failures;
    const Path* listening = nullptr;  // the failed path to the address where the ranks of `to` listen
    for (const Path* each : paths) {
      if (each->failure.empty()) continue;
      failures.push_back(fmt::format("{} ({})", endpoint_text(each->at), each->failure));
      if (each->at.interface.address == to.store_address) listening = each;
    }
    if (failures.empty()) return;
    if (fastest(paths) == nullptr) {
      add(Severity::kError, "reachability", from,
          fmt::format("cannot reach {} at {}; {}", to.host, join(failures), kFirewallAdvice));
    } else if (listening != nullptr) {
      add(Severity::kError, "reachability", from,
          fmt::format("cannot reach {} at {} ({}), where its ranks listen because they reach the store from there; {}, "
                      "or set MASTER_ADDR to an address of another network",
                      to.host, endpoint_text(listening->at), listening->failure, kFirewallAdvice));
    } else {
      add(Severity::kNote, "reachability", from,
          fmt::format("reaches {}, but not at {}; if a backend chooses that address, name another interface (option "
                      "iface or address)",
                      to.host, join(failures)));
    }
  }

  void check_clock(const Facts& from, const Facts& to, const Paths& paths) {
    const Path* const path = fastest(paths);
    if (path == nullptr || std::abs(path->clock_offset) < kClockTolerance + path->latency) return;
    add(Severity::kWarning, "clock", to,
        fmt::format("the clock is {:.1f} s {} that of {}, so traces of several hosts are merged in a wrong order; "
                    "synchronise the clocks (NTP)",
                    std::abs(path->clock_offset), path->clock_offset > 0 ? "ahead of" : "behind", from.host));
  }

  // Finds paths that are much slower than most, as by a wrong interface or a link that negotiated a low rate.
  void check_bandwidth() {
    std::vector<double> rates;
    for (const auto& [pair, paths] : pairs_) {
      if (const Path* const path = fastest(paths); path != nullptr) rates.push_back(path->bandwidth);
    }
    if (rates.size() < kFewestRates) return;
    const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
    std::nth_element(rates.begin(), middle, rates.end());
    std::vector<std::string> slow;
    std::vector<std::string> hosts;
    for (const auto& [pair, paths] : pairs_) {
      const Path* const path = fastest(paths);
      if (path == nullptr || path->bandwidth >= kSlowFraction * *middle) continue;
      slow.push_back(
          fmt::format("{} to {} ({:.0f} MB/s)", host(pair.first).host, host(pair.second).host, path->bandwidth * 1e-6));
      for (const int rank : {pair.first, pair.second}) hosts.push_back(host(rank).host);
    }
    if (slow.empty()) return;
    std::sort(hosts.begin(), hosts.end());
    hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
    const size_t count = slow.size();
    if (count > kNamedPairs) {
      slow.resize(kNamedPairs);
      slow.push_back(fmt::format("{} more", count - kNamedPairs));
    }
    findings_.push_back({Severity::kWarning, "bandwidth", hosts,
                         fmt::format("some paths have less than a third of the median bandwidth of {:.0f} MB/s: {}; "
                                     "check the links of these hosts",
                                     *middle * 1e-6, join(slow))});
  }

  std::map<int, const Facts*> hosts_;  // by rank
  std::map<std::pair<int, int>, Paths> pairs_;
  Findings findings_;
};

}  // namespace

Findings network_findings(const std::vector<Facts>& hosts, const std::vector<Path>& paths) {
  return NetworkChecks(hosts, paths).run();
}

}  // namespace backplane::tool
