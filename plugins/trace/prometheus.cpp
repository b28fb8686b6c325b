// SPDX-License-Identifier: Apache-2.0
#include "prometheus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "backplane/base/utf8.hpp"
#include "backplane/sdk/layer.hpp"

namespace backplane::trace {
namespace {

struct Row {
  std::string labels;  // group="world",rank="0",op="send"
  Snapshot at;
};

std::string escaped(const std::string& value) {
  std::string result;
  for (const char c : base::replace_invalid_utf8(value)) {
    if (c == '\\' || c == '"') result.push_back('\\');
    if (c == '\n') {
      result += "\\n";
    } else {
      result.push_back(c);
    }
  }
  return result;
}

std::string seconds(uint64_t ns) { return fmt::format("{}.{:09}", ns / 1'000'000'000, ns % 1'000'000'000); }

const char* name_of(uint32_t kind) {
  return kind == kCall ? "call" : kind == kServedCall ? "served_call" : sdk::op_name(kind);
}

void add_row(const std::string& labels, const Counts& counts, std::vector<Row>* rows) {
  Snapshot at = counts.snapshot();
  if (at.count > 0 || at.in_flight > 0) rows->push_back({labels, at});
}

std::vector<Row> rows_of(const Statistics& statistics, const std::string& whose) {
  std::vector<Row> rows;
  for (uint32_t kind = 0; kind < kKinds; ++kind) {
    add_row(fmt::format(R"({},op="{}")", whose, name_of(kind)), statistics[kind], &rows);
  }
  return rows;
}

std::vector<Row> rows_of(const Functions& functions, const std::string& whose) {
  std::vector<Row> rows;
  functions.for_each([&whose, &rows](const Function& function) {
    const std::string labels = fmt::format(R"({},function="{}")", whose, escaped(function.name));
    add_row(labels + R"(,side="caller")", function.made, &rows);
    add_row(labels + R"(,side="callee")", function.served, &rows);
  });
  return rows;
}

class Text {
 public:
  void metric(const std::string& name, const char* type, const std::string& help) {
    name_ = "backplane_" + name;
    text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name_, help, type);
  }
  template <typename Value>
  void value(const std::string& labels, const Value& value, const char* suffix = "") {
    text_ += fmt::format("{}{}{{{}}} {}\n", name_, suffix, labels, value);
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
      text->value(fmt::format(R"({},quantile="{}")", row.labels, label), seconds(row.at.quantile_ns(share)));
    }
    text->value(row.labels, seconds(row.at.sum_ns), "_sum");
    text->value(row.labels, row.at.count, "_count");
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

// Bounds are powers of two minus one nanosecond, as in Buckets, from 1 us to 1 min.
void latencies(const std::vector<Row>& rows, const std::string& name, const char* help, Text* text) {
  constexpr int kFirst = 10;
  constexpr int kLast = 36;
  text->metric(name, "histogram", help);
  for (const Row& row : rows) {
    for (int exponent = kFirst; exponent <= kLast; ++exponent) {
      const uint64_t most = (uint64_t{1} << exponent) - 1;
      text->value(fmt::format(R"({},le="{}")", row.labels, seconds(most)), row.at.count_up_to(most), "_bucket");
    }
    text->value(row.labels + R"(,le="+Inf")", row.at.count, "_bucket");
    text->value(row.labels, seconds(row.at.sum_ns), "_sum");
    text->value(row.labels, row.at.count, "_count");
  }
}

void failures(const std::vector<Row>& rows, const std::string& name, const char* help, Text* text) {
  text->metric(name, "counter", help);
  for (const Row& row : rows) {
    for (size_t status = 0; status < row.at.failures.size(); ++status) {
      if (row.at.failures[status] == 0) continue;
      const char* const name = sdk::status_name(static_cast<int32_t>(status));
      text->value(fmt::format(R"({},status="{}")", row.labels, name), row.at.failures[status]);
    }
  }
}

// The metric's name with characters that Prometheus does not allow replaced.
std::string metric_name(const WorkerMetric& metric) {
  std::string name = "rpc_" + metric.name;
  for (char& c : name) {
    const bool fits = ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9');
    if (!fits) c = '_';
  }
  return metric.is_counter ? name + "_total" : name;
}

void worker_metrics(WorkerMetrics worker, const std::string& whose, Text* text) {
  // The format wants all lines of one metric together.
  std::stable_sort(worker.all.begin(), worker.all.end(),
                   [](const WorkerMetric& a, const WorkerMetric& b) { return a.name < b.name; });
  const std::string labels = fmt::format(R"({},worker="{}")", whose, escaped(worker.worker));
  const std::string* last = nullptr;
  for (const WorkerMetric& each : worker.all) {
    if (last == nullptr || *last != each.name) {
      text->metric(metric_name(each), each.is_counter ? "counter" : "gauge",
                   fmt::format("The worker's {}.", escaped(each.name)));
    }
    last = &each.name;
    text->value(each.peer.empty() ? labels : fmt::format(R"({},peer="{}")", labels, escaped(each.peer)), each.value);
  }
}

}  // namespace

std::string prometheus_text(const Statistics& statistics, const Functions& functions, const WorkerMetrics& worker,
                            const std::string& group, int32_t rank) {
  const std::string whose = fmt::format(R"(group="{}",rank="{}")", escaped(group), rank);
  const std::vector<Row> rows = rows_of(statistics, whose);
  Text text;
  text.metric("operation_bytes_total", "counter",
              "Bytes of the larger of input and output; of what arrived, for recv; of request and answer, for calls.");
  for (const Row& row : rows) text.value(row.labels, row.at.bytes);
  failures(rows, "operation_failures_total", "Operations that failed, by status.", &text);
  text.metric("operations_in_flight", "gauge", "Operations that have started and whose end has not been observed.");
  for (const Row& row : rows) text.value(row.labels, row.at.in_flight);
  durations(rows, &text);
  latencies(rows, "operation_latency_seconds", "The same times as operation_seconds.", &text);
  const std::vector<Row> calls = rows_of(functions, whose);
  if (!calls.empty()) {
    text.metric("call_bytes_total", "counter", "Bytes of request and answer.");
    for (const Row& row : calls) text.value(row.labels, row.at.bytes);
    failures(calls, "call_failures_total", "Calls that failed, by status.", &text);
    latencies(calls, "call_latency_seconds", "Time from the call to its end; for the callee from its arrival on.",
              &text);
  }
  worker_metrics(worker, whose, &text);
  return text.take();
}

}  // namespace backplane::trace
