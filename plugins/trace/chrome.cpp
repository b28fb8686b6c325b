// SPDX-License-Identifier: Apache-2.0
#include "chrome.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <queue>
#include <utility>

#include "backplane/sdk/layer.hpp"

namespace backplane::trace {
namespace {

// A JSON string.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Decimal text, since a double does not hold nanoseconds since 1970.
std::string microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

// Assigns a track number to each event such that events of one track do not overlap. `events` are sorted by begin.
std::vector<size_t> tracks_of(const std::vector<Event>& events) {
  using Busy = std::pair<int64_t, size_t>;  // end time, track
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy;
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> free;
  std::vector<size_t> tracks;
  size_t made = 0;
  for (const Event& event : events) {
    for (; !busy.empty() && busy.top().first <= event.begin_ns; busy.pop()) free.push(busy.top().second);
    if (free.empty()) free.push(made++);
    tracks.push_back(free.top());
    free.pop();
    busy.emplace(event.end_ns, tracks.back());
  }
  return tracks;
}

// Track numbers differ between groups, so that files of several groups can be merged.
uint32_t first_track(const std::string& group) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : group) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash % 20000 * 100000 + 1;
}

std::string metadata(const char* what, int32_t rank, uint64_t track, const std::string& name) {
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})", what, rank, track,
                     quoted(name));
}

std::string complete_event(const std::string& name, const char* category, const Event& event, uint64_t track,
                           int32_t rank, int64_t offset_ns, const std::string& arguments) {
  return fmt::format(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                     quoted(name), category, rank, track, microseconds(event.begin_ns + offset_ns),
                     microseconds(std::max<int64_t>(0, event.end_ns - event.begin_ns)), arguments);
}

std::string call_event(const Event& call, const std::string& function, uint64_t track, int32_t rank,
                       int64_t offset_ns) {
  const std::string arguments =
      fmt::format(R"("number":{},"direction":"{}","peer":{},"status":"{}","request_bytes":{},"answer_bytes":{})",
                  call.seq, call.kind == kServedCall ? "in" : "out", call.other, sdk::status_name(call.status),
                  call.bytes, call.answer_bytes);
  return complete_event(function, "call", call, track, rank, offset_ns, arguments);
}

std::string operation_event(const Event& event, uint64_t track, int32_t rank, int64_t offset_ns) {
  const bool message = event.kind == BP_SEND || event.kind == BP_RECV;
  std::string arguments = fmt::format(R"("seq":{},"bytes":{})", event.seq, event.bytes);
  if (event.kind != BP_BARRIER) arguments += fmt::format(R"(,"dtype":"{}")", sdk::dtype_name(event.dtype));
  if (event.other >= 0) arguments += fmt::format(R"(,"{}":{})", message ? "peer" : "root", event.other);
  arguments += fmt::format(R"(,"status":"{}")", sdk::status_name(event.status));
  return complete_event(sdk::op_name(event.kind), message ? "message" : "collective", event, track, rank, offset_ns,
                        arguments);
}

std::string metrics_of(const WorkerMetrics& worker) {
  nlohmann::ordered_json metrics = nlohmann::ordered_json::object();
  for (const WorkerMetric& each : worker.all) {
    metrics[each.peer.empty() ? each.name : each.name + " " + each.peer] = each.value;
  }
  return fmt::format(R"(,"worker":{},"metrics":{})", quoted(worker.worker),
                     metrics.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

std::string chrome_trace(const Events& events, const Functions& functions, const WorkerMetrics& worker,
                         const std::string& group, int32_t rank, int64_t realtime_offset_ns) {
  uint64_t forgotten = 0;
  std::vector<Event> all = events.all(&forgotten);
  std::stable_sort(all.begin(), all.end(), [](const Event& a, const Event& b) { return a.begin_ns < b.begin_ns; });
  const std::vector<size_t> tracks = tracks_of(all);
  const uint64_t first = first_track(group);
  const size_t track_count = tracks.empty() ? 0 : *std::max_element(tracks.begin(), tracks.end()) + 1;
  std::string text = fmt::format(R"({{"otherData":{{"forgotten":{}{}}},"traceEvents":[)", forgotten,
                                 worker.all.empty() ? "" : metrics_of(worker));
  text += "\n" + metadata("process_name", rank, first, fmt::format("rank {}", rank));
  for (size_t track = 0; track < track_count; ++track) {
    text += ",\n" + metadata("thread_name", rank, first + track, fmt::format("{} {}", group, track));
  }
  std::vector<std::string> names;
  functions.for_each([&names](const Function& function) { names.push_back(function.name); });
  for (size_t i = 0; i < all.size(); ++i) {
    const uint64_t track = first + tracks[i];
    text += ",\n";
    text += all[i].kind < BP_OP_COUNT ? operation_event(all[i], track, rank, realtime_offset_ns)
                                      : call_event(all[i], names[all[i].dtype], track, rank, realtime_offset_ns);
  }
  return text + "\n]}\n";
}

}  // namespace backplane::trace
