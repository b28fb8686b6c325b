// SPDX-License-Identifier: Apache-2.0
#include "bench/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "common/table.hpp"

namespace backplane::tool {
namespace {

bool same_row(const Measurement& a, const Measurement& b) {
  return a.ranks == b.ranks && a.operation == b.operation && a.bytes == b.bytes;
}

double best_of_row(const BenchReport& report, const Measurement& one) {
  double best = 0;
  for (const Measurement& other : report.rows) {
    if (same_row(one, other) && (best == 0 || other.p50_us < best)) best = other.p50_us;
  }
  return best;
}

std::string number(double value) {
  if (value <= 0) return "-";
  if (value < 0.1) return fmt::format("{:.2g}", value);
  if (value < 10) return fmt::format("{:.2f}", value);
  return value < 100 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

std::string csv_quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result.append(c == '"' ? 2 : 1, c);
  return result + "\"";
}

}  // namespace

double percentile(const std::vector<double>& sorted, double share) {
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

Measurement summarize(const std::string& backend, int ranks, bench::Result result, std::vector<std::string> wrong) {
  for (auto* samples : {&result.us, &result.alone, &result.compute}) std::sort(samples->begin(), samples->end());
  Measurement made;
  made.backend = backend;
  made.ranks = ranks;
  made.operation = bench::name_of(result.row.test);
  made.bytes = result.row.bytes;
  made.samples = result.us.size();
  made.operations_per_sample = result.operations;
  made.p1_us = percentile(result.us, 0.01);
  made.p50_us = percentile(result.us, 0.5);
  made.p99_us = percentile(result.us, 0.99);
  const bool overlap = result.row.test == bench::Test::kOverlap;
  const double time = overlap ? percentile(result.alone, 0.5) : made.p50_us;
  made.algbw = time > 0 ? bench::data_of(result.row, ranks) / time * 1e-3 : 0;
  made.busbw = made.algbw * bench::bus_factor(result.row.test, ranks);
  if (overlap) {
    const double hidden = time + percentile(result.compute, 0.5) - made.p50_us;
    made.hidden_percent = std::clamp(100 * hidden / std::max(time, 1e-9), 0.0, 100.0);
  }
  made.wrong = std::move(wrong);
  return made;
}

std::string size_text(uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

std::string bench_table(const BenchReport& report) {
  Table table({"RANKS", "OPERATION", "SIZE", "BACKEND", "P1 us", "P50 us", "P99 us", "x BEST", "ALGBW GB/s",
               "BUSBW GB/s", "HIDDEN", "CHECK"});
  const Measurement* last = nullptr;
  for (const Measurement& one : report.rows) {
    const bool again = last != nullptr && same_row(*last, one);
    const std::string size = one.bytes == 0 ? "-" : size_text(one.bytes);
    table.add({again ? "" : std::to_string(one.ranks), again ? "" : one.operation, again ? "" : size, one.backend,
               number(one.p1_us), number(one.p50_us), number(one.p99_us),
               fmt::format("{:.2f}", one.p50_us / std::max(best_of_row(report, one), 1e-9)), number(one.algbw),
               number(one.busbw), one.hidden_percent < 0 ? "-" : fmt::format("{:.0f}%", one.hidden_percent),
               !report.checked     ? "-"
               : one.wrong.empty() ? "ok"
                                   : "WRONG"});
    for (const std::string& sentence : one.wrong) table.note(sentence);
    last = &one;
  }
  std::string text = table.text();
  for (const Skipped& each : report.skipped)
    text += fmt::format("skipped: {}: {}\n", each.backend, printable(each.reason));
  return text;
}

std::string bench_csv(const BenchReport& report) {
  std::string text =
      "backend,ranks,operation,bytes,samples,operations_per_sample,p1_us,p50_us,p99_us,algbw_gbps,busbw_gbps,"
      "hidden_percent,wrong\n";
  for (const Measurement& one : report.rows) {
    text +=
        fmt::format("{},{},{},{},{},{},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},{},{}\n", csv_quoted(one.backend), one.ranks,
                    one.operation, one.bytes, one.samples, one.operations_per_sample, one.p1_us, one.p50_us, one.p99_us,
                    one.algbw, one.busbw, one.hidden_percent < 0 ? "" : fmt::format("{:.1f}", one.hidden_percent),
                    report.checked ? std::to_string(one.wrong.size()) : "");
  }
  return text;
}

}  // namespace backplane::tool
