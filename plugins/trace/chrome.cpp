// SPDX-License-Identifier: Apache-2.0
#include "chrome.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <queue>
#include <utility>

#include "backplane/base/utf8.hpp"
#include "backplane/sdk/layer.hpp"

namespace backplane::trace {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : base::replace_invalid_utf8(text)) {
    if (c == '"' || c == '\\') result.push_back('\\');
    if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      result += code;
    } else {
      result.push_back(c);
    }
  }
  return result + "\"";
}

std::string microseconds(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000), static_cast<long long>(ns % 1000));
  return text;
}

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
  return std::string("{\"ph\":\"M\",\"name\":\"") + what + "\",\"pid\":" + std::to_string(rank) +
         ",\"tid\":" + std::to_string(track) + ",\"args\":{\"name\":" + quoted(name) + "}}";
}

// An event up to the contents of "args".
std::string event_head(const std::string& name, const char* category, const Event& event, uint64_t track, int32_t rank,
                       int64_t offset_ns) {
  return "{\"ph\":\"X\",\"name\":" + quoted(name) + ",\"cat\":\"" + category + "\",\"pid\":" + std::to_string(rank) +
         ",\"tid\":" + std::to_string(track) + ",\"ts\":" + microseconds(event.begin_ns + offset_ns) +
         ",\"dur\":" + microseconds(std::max<int64_t>(0, event.end_ns - event.begin_ns)) + ",\"args\":{";
}

std::string call_event(const Event& call, const std::string& function, uint64_t track, int32_t rank,
                       int64_t offset_ns) {
  return event_head(function, "call", call, track, rank, offset_ns)
      .append("\"number\":")
      .append(std::to_string(call.seq))
      .append(",\"direction\":")
      .append(call.kind == kServedCall ? "\"in\"" : "\"out\"")
      .append(",\"peer\":")
      .append(std::to_string(call.other))
      .append(",\"status\":\"")
      .append(sdk::status_name(call.status))
      .append("\",\"request_bytes\":")
      .append(std::to_string(call.bytes))
      .append(",\"answer_bytes\":")
      .append(std::to_string(call.answer_bytes))
      .append("}}");
}

std::string line_of(const Event& event, uint64_t track, int32_t rank, int64_t offset_ns) {
  const bool message = event.kind == BP_SEND || event.kind == BP_RECV;
  std::string text =
      event_head(sdk::op_name(event.kind), message ? "message" : "collective", event, track, rank, offset_ns) +
      "\"seq\":" + std::to_string(event.seq) + ",\"bytes\":" + std::to_string(event.bytes);
  if (event.kind != BP_BARRIER) text += std::string(",\"dtype\":\"") + sdk::dtype_name(event.dtype) + "\"";
  if (event.other >= 0) text += std::string(message ? ",\"peer\":" : ",\"root\":") + std::to_string(event.other);
  return text + ",\"status\":\"" + sdk::status_name(event.status) + "\"}}";
}

std::string line_of(const WorkerMetrics& metrics) {
  std::string text = ",\"worker\":" + quoted(metrics.worker) + ",\"metrics\":{";
  for (const WorkerMetric& each : metrics.all) {
    if (text.back() != '{') text += ",";
    text += quoted(each.peer.empty() ? each.name : each.name + " " + each.peer) + ":" + std::to_string(each.value);
  }
  return text + "}";
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
  std::string text = "{\"otherData\":{\"forgotten\":" + std::to_string(forgotten);
  if (!worker.all.empty()) text += line_of(worker);
  text += "},\"traceEvents\":[\n";
  text += metadata("process_name", rank, first, "rank " + std::to_string(rank));
  for (size_t track = 0; track < track_count; ++track) {
    text += ",\n" + metadata("thread_name", rank, first + track, group + " " + std::to_string(track));
  }
  std::vector<std::string> names;
  functions.for_each([&names](const Function& function) { names.push_back(function.name); });
  for (size_t i = 0; i < all.size(); ++i) {
    const uint64_t track = first + tracks[i];
    text += ",\n";
    text += all[i].kind < BP_OP_COUNT ? line_of(all[i], track, rank, realtime_offset_ns)
                                      : call_event(all[i], names[all[i].dtype], track, rank, realtime_offset_ns);
  }
  return text + "\n]}\n";
}

}  // namespace backplane::trace
