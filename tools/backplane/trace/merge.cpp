// SPDX-License-Identifier: Apache-2.0
#include "trace/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "common/failure.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

using Json = nlohmann::ordered_json;

std::string operation_text(const Json& entry) {
  std::string text = entry.at("op").get<std::string>();
  if (entry.contains("reduce_op")) text += fmt::format(" {}", entry["reduce_op"].get<std::string>());
  if (entry.contains("dtype")) {
    text += fmt::format(" ({} x {})", entry["dtype"].get<std::string>(), entry.at("count").get<uint64_t>());
  }
  if (entry.contains("root")) text += fmt::format(" with root {}", entry["root"].get<int>());
  if (entry.contains("peer")) {
    const int peer = entry["peer"].get<int>();
    const bool sends = entry["op"] == "send";
    text += peer < 0 ? " from any rank" : fmt::format(" {} rank {}", sends ? "to" : "from", peer);
  }
  return text;
}

// "call 'f' on worker1 (rank 1)", "call 'f' for worker0 (rank 0)"
std::string call_text(const Json& call) {
  const std::string function = call.at("function").get<std::string>();
  return fmt::format("{}{} {} {} (rank {})", call.at("kind").get<std::string>(),
                     function.empty() ? "" : fmt::format(" '{}'", function),
                     call.at("direction") == "in" ? "for" : "on", call.at("worker").get<std::string>(),
                     call.at("peer").get<int>());
}

std::string milliseconds(int64_t ns) { return fmt::format("{:.3f}", static_cast<double>(ns) * 1e-6); }

// By group, then by rank.
std::map<std::string, std::map<int, const TracedRank*>> by_group(const std::vector<TracedRank>& ranks) {
  std::map<std::string, std::map<int, const TracedRank*>> groups;
  for (const TracedRank& rank : ranks) groups[rank.key][rank.rank] = &rank;
  return groups;
}

uint64_t last_collective(const TracedRank& rank) {
  uint64_t last = 0;
  for (const TraceEvent& event : rank.events) {
    if (event.collective) last = std::max(last, event.seq);
  }
  return last;
}

// Names up to kNamed ranks without a trace; empty if none is missing.
std::string missing(const std::map<int, const TracedRank*>& members, int world_size) {
  constexpr size_t kNamed = 8;
  const auto there = std::count_if(members.begin(), members.end(),
                                   [world_size](const auto& m) { return m.first >= 0 && m.first < world_size; });
  const auto count = static_cast<size_t>(std::max<int64_t>(int64_t{world_size} - there, 0));
  std::vector<std::string> named;
  for (int rank = 0; named.size() < std::min(count, kNamed); ++rank) {
    if (members.count(rank) == 0) named.push_back(std::to_string(rank));
  }
  if (named.empty()) return "";
  return fmt::format("no trace of rank{} {}{}", count == 1 ? "" : "s", join(named),
                     count > kNamed ? fmt::format(" and of {} more", count - kNamed) : "");
}

// The first collective in which two ranks entered different operations.
std::string first_difference(const std::map<int, const TracedRank*>& ranks) {
  std::map<uint64_t, std::pair<int, std::string>> entered;
  std::map<uint64_t, std::string> differences;
  for (const auto& [number, rank] : ranks) {
    for (const TraceEvent& event : rank->events) {
      if (!event.collective || event.operation.find("v (") != std::string::npos) continue;
      const auto [first, is_new] = entered.emplace(event.seq, std::pair(number, event.operation));
      if (is_new || first->second.second == event.operation) continue;
      differences.emplace(event.seq,
                          fmt::format("rank {} entered {} as #{} where rank {} entered {}", number, event.operation,
                                      event.seq, first->second.first, first->second.second));
    }
  }
  return differences.empty() ? "" : differences.begin()->second;
}

}  // namespace

TracedRank read_trace(const Json& json, const std::string& origin) {
  try {
    const int64_t to_wall =
        json.at("clock").at("realtime_ns").get<int64_t>() - json.at("clock").at("monotonic_ns").get<int64_t>();
    TracedRank rank{json.at("group"),
                    json.at("key"),
                    json.at("rank"),
                    json.at("world_size"),
                    json.at("identity"),
                    json.at("broken"),
                    {}};
    const auto add = [&rank, to_wall](const Json& entry, std::string text, uint64_t number, bool collective) {
      const auto end = entry.at("end_ns").get<int64_t>();
      rank.events.push_back({rank.group, rank.rank, std::move(text), number, collective, entry.at("state"),
                             entry.at("begin_ns").get<int64_t>() + to_wall, end == 0 ? 0 : end + to_wall});
    };
    for (const Json& entry : json.at("entries"))
      add(entry, operation_text(entry), entry.at("seq"), !entry.contains("peer"));
    if (json.contains("calls")) {
      for (const Json& call : json["calls"]) add(call, call_text(call), call.at("number"), false);
    }
    return rank;
  } catch (const Json::exception& error) {
    throw Failure(kFailed, fmt::format("{} is not a trace of Backplane: {}", origin, error.what()));
  }
}

std::vector<TraceEvent> merged(const std::vector<TracedRank>& ranks) {
  std::vector<TraceEvent> events;
  for (const TracedRank& rank : ranks) events.insert(events.end(), rank.events.begin(), rank.events.end());
  std::stable_sort(events.begin(), events.end(),
                   [](const TraceEvent& a, const TraceEvent& b) { return a.begin_ns < b.begin_ns; });
  return events;
}

std::vector<std::string> remarks(const std::vector<TracedRank>& ranks) {
  std::vector<std::string> lines;
  for (const auto& [key, members] : by_group(ranks)) {
    const TracedRank& any = *members.begin()->second;
    const auto add = [&lines, &any](const std::string& text) {
      lines.push_back(fmt::format("group '{}': {}", any.group, text));
    };
    uint64_t furthest = 0;
    for (const auto& [number, rank] : members) furthest = std::max(furthest, last_collective(*rank));
    const std::string absent = missing(members, any.world_size);
    if (!absent.empty()) add(absent);
    for (const auto& [number, one] : members) {
      const TracedRank& rank = *one;
      const uint64_t last = last_collective(rank);
      if (last < furthest) {
        add(fmt::format("rank {} ({}) has entered {} collectives where others have entered {}", number, rank.identity,
                        last, furthest));
      }
      if (!rank.broken.empty()) add(fmt::format("broken on rank {}: {}", number, rank.broken));
    }
    const std::string difference = first_difference(members);
    if (!difference.empty()) add(difference);
  }
  return lines;
}

std::string trace_table(const std::vector<TracedRank>& ranks, size_t last) {
  const std::vector<TraceEvent> events = merged(ranks);
  std::string text;
  for (const std::string& line : remarks(ranks)) text += printable(line) + "\n";
  if (events.empty()) return text + "No operations were recorded.\n";
  Table table({"MS", "GROUP", "RANK", "NUMBER", "STATE", "TOOK MS", "OPERATION"});
  const size_t begin = events.size() - std::min(events.size(), last);
  for (size_t i = begin; i < events.size(); ++i) {
    const TraceEvent& event = events[i];
    table.add({milliseconds(event.begin_ns - events.front().begin_ns), printable(event.group),
               std::to_string(event.rank), std::to_string(event.seq), printable(event.state),
               event.end_ns == 0 ? "-" : milliseconds(event.end_ns - event.begin_ns), printable(event.operation)});
  }
  return text + table.text();
}

std::string chrome_trace(const std::vector<TracedRank>& ranks) {
  Json list = Json::array();
  std::map<std::string, int> threads;
  for (const TracedRank& rank : ranks) {
    const int thread = threads.emplace(rank.key, static_cast<int>(threads.size())).first->second;
    const auto metadata = [&](const char* what, const std::string& name) {
      list.push_back({{"name", what}, {"ph", "M"}, {"pid", rank.rank}, {"tid", thread}, {"args", {{"name", name}}}});
    };
    metadata("process_name", fmt::format("rank {} ({})", rank.rank, rank.identity));
    metadata("thread_name", rank.group);
    for (const TraceEvent& event : rank.events) {
      Json item = {{"name", event.operation},
                   {"ph", event.end_ns == 0 ? "B" : "X"},
                   {"ts", static_cast<double>(event.begin_ns) * 1e-3},
                   {"pid", rank.rank},
                   {"tid", thread},
                   {"args", {{"number", event.seq}, {"state", event.state}}}};
      if (event.end_ns != 0) item["dur"] = static_cast<double>(event.end_ns - event.begin_ns) * 1e-3;
      list.push_back(std::move(item));
    }
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(list)}}.dump(-1, ' ', false,
                                                                                Json::error_handler_t::replace) +
         "\n";
}

}  // namespace backplane::tool
