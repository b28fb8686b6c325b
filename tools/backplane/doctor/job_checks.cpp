// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "common/table.hpp"
#include "doctor/checks.hpp"

namespace backplane::tool {
namespace {

using Names = std::vector<std::string>;

// "rank 3", "ranks 0-2, 5". `ranks` are in order.
std::string ranks_text(const std::vector<int>& ranks) {
  Names ranges;
  for (size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    const bool is_one = end == begin + 1;
    ranges.push_back(is_one ? std::to_string(ranks[begin]) : fmt::format("{}-{}", ranks[begin], ranks[end - 1]));
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", join(ranges));
}

// "1.0.0 on ranks 0-1, 1.1.0 on rank 2". Empty if all ranks have the same value.
std::string difference(const std::vector<Facts>& ranks, const std::function<std::string(const Facts&)>& value) {
  std::map<std::string, std::vector<int>> ranks_by_value;
  for (const Facts& each : ranks) ranks_by_value[value(each)].push_back(each.rank);
  if (ranks_by_value.size() < 2) return "";
  Names parts;
  for (const auto& [text, those] : ranks_by_value) parts.push_back(fmt::format("{} on {}", text, ranks_text(those)));
  return join(parts);
}

// The variables that the launcher sets to different values on purpose. BACKPLANE_RANK_ENV has "A=x{rank},B=y".
std::set<std::string> variables_per_rank(const Facts& facts) {
  std::set<std::string> names = {"BACKPLANE_SECRET_FD"};
  const auto list = facts.environment.find("BACKPLANE_RANK_ENV");
  std::istringstream words(list == facts.environment.end() ? "" : list->second);
  for (std::string word; std::getline(words, word, ',');) names.insert(word.substr(0, word.find('=')));
  return names;
}

class JobChecks {
 public:
  explicit JobChecks(const std::vector<Facts>& ranks) : ranks_(ranks) {
    for (const Facts& each : ranks) {
      if (!each.is_whole) continue;
      hosts_.push_back(each);
      names_.push_back(each.host);
    }
  }

  Findings run() {
    check_versions();
    check_environments();
    check_backends();
    check_names();
    check_addresses();
    return std::move(findings_);
  }

 private:
  void add(Severity severity, const char* check, Names hosts, std::string text) {
    findings_.push_back({severity, check, std::move(hosts), std::move(text)});
  }

  void check_versions() {
    const std::string text = difference(ranks_, [](const Facts& facts) { return facts.version; });
    if (text.empty()) return;
    add(Severity::kError, "version", names_,
        fmt::format("the version of Backplane is {}; install the same version on all hosts", text));
  }

  void check_environments() {
    std::set<std::string> variables;
    for (const Facts& each : ranks_) {
      for (const auto& [name, value] : each.environment) variables.insert(name);
    }
    for (const std::string& name : variables_per_rank(ranks_.front())) variables.erase(name);
    for (const std::string& name : variables) {
      const std::string text = difference(ranks_, [&name](const Facts& facts) {
        const auto found = facts.environment.find(name);
        return found == facts.environment.end() ? "unset" : fmt::format("'{}'", found->second);
      });
      if (text.empty()) continue;
      add(Severity::kWarning, "environment", names_,
          fmt::format("{} is {}; set it to the same value on all ranks", name, text));
    }
  }

  void check_backends() {
    std::set<std::string> ids;
    for (const Facts& each : hosts_) {
      for (const BackendFact& backend : each.backends) ids.insert(backend.id);
    }
    for (const std::string& id : ids) {
      const std::string text = difference(hosts_, [&id](const Facts& facts) -> std::string {
        for (const BackendFact& each : facts.backends) {
          if (each.id == id) return each.version + (each.viable ? "" : " (not usable)");
        }
        return "missing";
      });
      if (text.empty()) continue;
      add(Severity::kWarning, "plugins", names_,
          fmt::format("the backend {} is {}; install the same version on all hosts", id, text));
    }
  }

  void check_names() {
    std::map<std::string, int> count_by_name;
    for (const Facts& each : hosts_) ++count_by_name[each.host];
    for (const auto& [name, count] : count_by_name) {
      if (count == 1) continue;
      add(Severity::kWarning, "host-name", {name},
          fmt::format("{} hosts have this name, so messages do not tell which one they mean; give each host a name of "
                      "its own",
                      count));
    }
  }

  void check_addresses() {
    std::map<std::string, Names> hosts_by_address;  // "172.17.0.1 (docker0)"
    for (const Facts& each : hosts_) {
      for (const Interface& own : each.interfaces) {
        hosts_by_address[fmt::format("{} ({})", own.address, own.name)].push_back(each.host);
      }
    }
    for (const auto& [address, hosts] : hosts_by_address) {
      if (hosts.size() == 1) continue;
      add(Severity::kNote, "interfaces", hosts,
          fmt::format("each of these hosts has the address {}, by which none reaches another; if a backend chooses it, "
                      "name another interface (option iface or address)",
                      address));
    }
  }

  const std::vector<Facts>& ranks_;
  std::vector<Facts> hosts_;
  Names names_;  // of hosts
  Findings findings_;
};

}  // namespace

Findings job_findings(const std::vector<Facts>& ranks) { return JobChecks(ranks).run(); }

}  // namespace backplane::tool
