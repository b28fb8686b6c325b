// SPDX-License-Identifier: Apache-2.0
#include "chrome.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <queue>
#include <string_view>
#include <utility>

#include "backplane/sdk/layer.hpp"
#include "statistics.hpp"

namespace backplane::trace {
namespace {

// The bytes of the character of UTF-8 with which `text` begins (Unicode 15, table 3-7); 0: it begins with none.
size_t character(std::string_view text) {
  const auto byte = [text](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The second tells longer forms than needed, surrogates, and what lies beyond Unicode.
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t at = 2; at < length; ++at) {
    if (byte(at) < 0x80 || byte(at) > 0xbf) return 0;
  }
  return length;
}

// What is no UTF-8 becomes U+FFFD, byte by byte: names of functions come from peers, and are cut where they are long.
std::string valid(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = character(text);
    if (length == 0) {
      result += "\xef\xbf\xbd";
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return result;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : valid(text)) {
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

// A lane number per event such that no two events of one lane overlap. `events` are sorted by their begin.
std::vector<size_t> lanes_of(const std::vector<Event>& events) {
  using Busy = std::pair<int64_t, size_t>;  // until when, which lane
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy;
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> free;
  std::vector<size_t> lanes;
  size_t made = 0;
  for (const Event& event : events) {
    for (; !busy.empty() && busy.top().first <= event.begin_ns; busy.pop()) free.push(busy.top().second);
    if (free.empty()) free.push(made++);
    lanes.push_back(free.top());
    free.pop();
    busy.emplace(event.end_ns, lanes.back());
  }
  return lanes;
}

// Lanes of different groups have different numbers, so that their files can be put together.
uint32_t first_lane(const std::string& group) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : group) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash % 20000 * 100000 + 1;
}

std::string metadata(const char* what, int32_t rank, uint64_t lane, const std::string& name) {
  return std::string("{\"ph\":\"M\",\"name\":\"") + what + "\",\"pid\":" + std::to_string(rank) +
         ",\"tid\":" + std::to_string(lane) + ",\"args\":{\"name\":" + quoted(name) + "}}";
}

// Up to what stands inside "args".
std::string head_of(const std::string& name, const char* category, const Event& event, uint64_t lane, int32_t rank,
                    int64_t offset_ns) {
  return "{\"ph\":\"X\",\"name\":" + quoted(name) + ",\"cat\":\"" + category + "\",\"pid\":" + std::to_string(rank) +
         ",\"tid\":" + std::to_string(lane) + ",\"ts\":" + microseconds(event.begin_ns + offset_ns) +
         ",\"dur\":" + microseconds(std::max<int64_t>(0, event.end_ns - event.begin_ns)) + ",\"args\":{";
}

std::string line_of_call(const Event& call, const std::string& function, uint64_t lane, int32_t rank,
                         int64_t offset_ns) {
  return head_of(function.empty() ? "(fetch)" : function, "call", call, lane, rank, offset_ns)
      .append("\"number\":")
      .append(std::to_string(call.seq))
      .append(",\"direction\":")
      .append(call.kind == kServedCall ? "\"in\"" : "\"out\"")
      .append(",\"peer\":")
      .append(std::to_string(call.other))
      .append(",\"status\":\"")
      .append(sdk::status_name(call.status))
      .append("\"}}");
}

std::string line_of(const Event& event, uint64_t lane, int32_t rank, int64_t offset_ns) {
  const bool message = event.kind == BP_SEND || event.kind == BP_RECV;
  std::string text =
      head_of(sdk::op_name(event.kind), message ? "message" : "collective", event, lane, rank, offset_ns) +
      "\"seq\":" + std::to_string(event.seq) + ",\"bytes\":" + std::to_string(event.bytes);
  if (event.kind != BP_BARRIER) text += std::string(",\"dtype\":\"") + sdk::dtype_name(event.dtype) + "\"";
  if (event.other >= 0) text += std::string(message ? ",\"peer\":" : ",\"root\":") + std::to_string(event.other);
  return text + ",\"status\":\"" + sdk::status_name(event.status) + "\"}}";
}

}  // namespace

std::string chrome_trace(const Events& events, const std::string& group, int32_t rank, int64_t realtime_offset_ns) {
  uint64_t forgotten = 0;
  std::vector<Event> all = events.all(&forgotten);
  std::stable_sort(all.begin(), all.end(), [](const Event& a, const Event& b) { return a.begin_ns < b.begin_ns; });
  const std::vector<size_t> lanes = lanes_of(all);
  const uint64_t first = first_lane(group);
  const size_t lane_count = lanes.empty() ? 0 : *std::max_element(lanes.begin(), lanes.end()) + 1;
  std::string text = "{\"otherData\":{\"forgotten\":" + std::to_string(forgotten) + "},\"traceEvents\":[\n";
  text += metadata("process_name", rank, first, "rank " + std::to_string(rank));
  for (size_t lane = 0; lane < lane_count; ++lane) {
    text += ",\n" + metadata("thread_name", rank, first + lane, group + " " + std::to_string(lane));
  }
  const std::vector<std::string> names = events.names();
  for (size_t i = 0; i < all.size(); ++i) {
    const uint64_t lane = first + lanes[i];
    text += ",\n";
    text += all[i].kind < BP_OP_COUNT ? line_of(all[i], lane, rank, realtime_offset_ns)
                                      : line_of_call(all[i], names[all[i].dtype], lane, rank, realtime_offset_ns);
  }
  return text + "\n]}\n";
}

}  // namespace backplane::trace
