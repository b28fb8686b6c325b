// SPDX-License-Identifier: Apache-2.0
#include "bench/report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "backplane/backplane.h"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

using Json = nlohmann::ordered_json;

bool same_row(const Measured& a, const Measured& b) {
  return a.ranks == b.ranks && a.row.test == b.row.test && a.row.bytes == b.row.bytes;
}

double best_of_row(const BenchReport& report, const Measured& one) {
  double best = 0;
  for (const Measured& other : report.results) {
    if (!same_row(one, other)) continue;
    const double p50 = percentile(other.found.us, 0.5);
    if (best == 0 || p50 < best) best = p50;
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

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

double percentile(const std::vector<double>& sorted, double share) {
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

Figures figures(const Measured& measured) {
  const bench::Finding& found = measured.found;
  Figures result{percentile(found.us, 0.01), percentile(found.us, 0.5), percentile(found.us, 0.99), 0, 0, -1};
  const bool overlap = measured.row.test == bench::Test::kOverlap;
  const double time = overlap ? percentile(found.alone, 0.5) : result.p50_us;
  result.algbw = time > 0 ? bench::data_of(measured.row, measured.ranks) / time * 1e-3 : 0;
  result.busbw = result.algbw * bench::bus_factor(measured.row.test, measured.ranks);
  if (overlap) {
    const double hidden = time + percentile(found.compute, 0.5) - result.p50_us;
    result.hidden_percent = std::clamp(100 * hidden / std::max(time, 1e-9), 0.0, 100.0);
  }
  return result;
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
  const Measured* last = nullptr;
  for (const Measured& one : report.results) {
    const Figures f = figures(one);
    const bool again = last != nullptr && same_row(*last, one);
    const std::string size = one.row.bytes == 0 ? "-" : size_text(one.row.bytes);
    table.add({again ? "" : std::to_string(one.ranks), again ? "" : bench::name_of(one.row.test), again ? "" : size,
               one.subject, number(f.p1_us), number(f.p50_us), number(f.p99_us),
               fmt::format("{:.2f}", f.p50_us / std::max(best_of_row(report, one), 1e-9)), number(f.algbw),
               number(f.busbw), f.hidden_percent < 0 ? "-" : fmt::format("{:.0f}%", f.hidden_percent),
               !report.checked     ? "-"
               : one.wrong.empty() ? "right"
                                   : "WRONG"});
    for (const std::string& sentence : one.wrong) table.note(sentence);
    last = &one;
  }
  std::string text = table.text();
  for (const LeftOut& each : report.left_out)
    text += fmt::format("left out: {}: {}\n", each.subject, printable(each.reason));
  return text;
}

std::string bench_json(const BenchReport& report) {
  Json results = Json::array();
  for (const Measured& one : report.results) {
    const Figures f = figures(one);
    Json row = {{"backend", one.subject},
                {"ranks", one.ranks},
                {"operation", bench::name_of(one.row.test)},
                {"bytes", one.row.bytes},
                {"samples", one.found.us.size()},
                {"operations_per_sample", one.found.operations},
                {"p1_us", f.p1_us},
                {"p50_us", f.p50_us},
                {"p99_us", f.p99_us},
                {"algbw_gbps", f.algbw},
                {"busbw_gbps", f.busbw}};
    if (f.hidden_percent >= 0) row["hidden_percent"] = f.hidden_percent;
    if (report.checked) row["wrong"] = one.wrong;
    results.push_back(std::move(row));
  }
  Json left_out = Json::array();
  for (const LeftOut& each : report.left_out) left_out.push_back({{"backend", each.subject}, {"reason", each.reason}});
  const Json whole = {{"format", "backplane-bench/1"},
                      {"version", bp_version()},
                      {"host", this_host()},
                      {"cores", std::thread::hardware_concurrency()},
                      {"pinned", report.pinned},
                      {"seconds", report.seconds},
                      {"rounds", report.rounds},
                      {"results", std::move(results)},
                      {"left_out", std::move(left_out)}};
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string bench_tuning(const BenchReport& report) {
  Json measured = Json::array();
  const Measured* last = nullptr;
  for (const Measured& one : report.results) {
    if (one.subject.find_first_of(" ?") != std::string::npos || one.subject == "auto") continue;
    if (last == nullptr || !same_row(*last, one)) {
      measured.push_back({{"ranks", one.ranks},
                          {"operation", bench::name_of(one.row.test)},
                          {"bytes", one.row.bytes},
                          {"us", Json::object()}});
    }
    measured.back()["us"][one.subject] = std::max(percentile(one.found.us, 0.5), 1e-3);
    last = &one;
  }
  const Json whole = {{"format", "backplane-tuning/1"}, {"host", this_host()}, {"measured", std::move(measured)}};
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string bench_csv(const BenchReport& report) {
  std::string text =
      "backend,ranks,operation,bytes,samples,operations_per_sample,p1_us,p50_us,p99_us,algbw_gbps,busbw_gbps,"
      "hidden_percent,wrong\n";
  for (const Measured& one : report.results) {
    const Figures f = figures(one);
    text += fmt::format("{},{},{},{},{},{},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},{},{}\n", csv_quoted(one.subject),
                        one.ranks, bench::name_of(one.row.test), one.row.bytes, one.found.us.size(),
                        one.found.operations, f.p1_us, f.p50_us, f.p99_us, f.algbw, f.busbw,
                        f.hidden_percent < 0 ? "" : fmt::format("{:.1f}", f.hidden_percent),
                        report.checked ? std::to_string(one.wrong.size()) : "");
  }
  return text;
}

}  // namespace backplane::tool
