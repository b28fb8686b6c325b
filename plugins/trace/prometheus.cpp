// SPDX-License-Identifier: Apache-2.0
#include "prometheus.hpp"

#include <cstdio>
#include <vector>

#include "backplane/sdk/layer.hpp"

namespace backplane::trace {
namespace {

struct Row {
  std::string labels;  // group="world",rank="0",op="send"
  Snapshot at;
};

std::string escaped(const std::string& value) {
  std::string result;
  for (const char c : value) {
    if (c == '\\' || c == '"') result.push_back('\\');
    if (c == '\n') {
      result += "\\n";
    } else {
      result.push_back(c);
    }
  }
  return result;
}

std::string seconds(uint64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%llu.%09llu", static_cast<unsigned long long>(ns / 1000000000),
                static_cast<unsigned long long>(ns % 1000000000));
  return text;
}

const char* name_of(uint32_t kind) {
  return kind == kCall ? "call" : kind == kServedCall ? "served_call" : sdk::op_name(kind);
}

std::vector<Row> rows_of(const Statistics& statistics, const std::string& group, int32_t rank) {
  std::vector<Row> rows;
  for (uint32_t kind = 0; kind < kKinds; ++kind) {
    Snapshot at = statistics.snapshot(kind);
    if (at.count == 0 && at.in_flight == 0) continue;
    rows.push_back(
        {"group=\"" + escaped(group) + "\",rank=\"" + std::to_string(rank) + "\",op=\"" + name_of(kind) + "\"", at});
  }
  return rows;
}

class Text {
 public:
  void metric(const char* name, const char* type, const char* help) {
    name_ = std::string("backplane_") + name;
    text_ += "# HELP " + name_ + " " + help + "\n# TYPE " + name_ + " " + type + "\n";
  }
  void value(const std::string& labels, const std::string& value, const char* suffix = "") {
    text_ += name_ + suffix + "{" + labels + "} " + value + "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

void durations(const std::vector<Row>& rows, Text* text) {
  constexpr struct {
    const char* label;
    double share;
  } kQuantiles[] = {{"0.5", 0.5}, {"0.95", 0.95}, {"0.99", 0.99}};
  text->metric("operation_seconds", "summary", "Time from the start of an operation until its end was seen.");
  for (const Row& row : rows) {
    for (const auto& [label, share] : kQuantiles) {
      text->value(row.labels + ",quantile=\"" + label + "\"", seconds(row.at.quantile_ns(share)));
    }
    text->value(row.labels, seconds(row.at.sum_ns), "_sum");
    text->value(row.labels, std::to_string(row.at.count), "_count");
  }
  text->metric("operation_seconds_min", "gauge", "Shortest operation.");
  for (const Row& row : rows) text->value(row.labels, seconds(row.at.min_ns));
  text->metric("operation_seconds_avg", "gauge", "Average operation.");
  for (const Row& row : rows) {
    text->value(row.labels, seconds(row.at.count == 0 ? 0 : row.at.sum_ns / row.at.count));
  }
  text->metric("operation_seconds_max", "gauge", "Longest operation.");
  for (const Row& row : rows) text->value(row.labels, seconds(row.at.max_ns));
}

}  // namespace

std::string prometheus_text(const Statistics& statistics, const std::string& group, int32_t rank) {
  const std::vector<Row> rows = rows_of(statistics, group, rank);
  Text text;
  text.metric("operation_bytes_total", "counter",
              "Bytes of the larger of input and output; of what arrived, for recv.");
  for (const Row& row : rows) text.value(row.labels, std::to_string(row.at.bytes));
  text.metric("operation_failures_total", "counter", "Operations that failed, by status.");
  for (const Row& row : rows) {
    for (size_t status = 0; status < row.at.failures.size(); ++status) {
      if (row.at.failures[status] == 0) continue;
      text.value(row.labels + ",status=\"" + sdk::status_name(static_cast<int32_t>(status)) + "\"",
                 std::to_string(row.at.failures[status]));
    }
  }
  text.metric("operations_in_flight", "gauge", "Operations that were started and whose end nobody has seen yet.");
  for (const Row& row : rows) text.value(row.labels, std::to_string(row.at.in_flight));
  durations(rows, &text);
  return text.take();
}

}  // namespace backplane::trace
