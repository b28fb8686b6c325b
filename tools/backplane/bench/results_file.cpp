// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/report.hpp"
#include "common/failure.hpp"
#include "common/files.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kFormat = "backplane-bench/2";

Json row_json(const Measurement& one, bool checked) {
  Json row = {{"backend", one.backend},  {"ranks", one.ranks},     {"operation", one.operation},
              {"bytes", one.bytes},      {"samples", one.samples}, {"operations_per_sample", one.operations_per_sample},
              {"p1_us", one.p1_us},      {"p50_us", one.p50_us},   {"p99_us", one.p99_us},
              {"algbw_gbps", one.algbw}, {"busbw_gbps", one.busbw}};
  if (one.hidden_percent >= 0) row["hidden_percent"] = one.hidden_percent;
  if (checked) row["wrong"] = one.wrong;
  return row;
}

Measurement to_row(const Json& json) {
  Measurement row;
  row.backend = json.at("backend");
  row.ranks = json.at("ranks");
  row.operation = json.at("operation");
  row.bytes = json.at("bytes");
  row.p50_us = json.at("p50_us");
  row.p1_us = json.value("p1_us", 0.0);
  row.p99_us = json.value("p99_us", 0.0);
  row.samples = json.value("samples", uint64_t{0});
  row.operations_per_sample = json.value("operations_per_sample", uint64_t{0});
  row.algbw = json.value("algbw_gbps", 0.0);
  row.busbw = json.value("busbw_gbps", 0.0);
  row.hidden_percent = json.value("hidden_percent", -1.0);
  row.wrong = json.value("wrong", std::vector<std::string>());
  return row;
}

BenchReport read_report(const std::string& path) {
  try {
    const Json json = Json::parse(read_file(path));
    if (json.at("format") != kFormat) {
      throw Failure(kWrongUse, fmt::format("--from {}: the format is {}, expected {}", printable(path),
                                           printable(json["format"].dump()), kFormat));
    }
    BenchReport report;
    report.title = json.value("title", "");
    for (const Json& row : json.at("rows")) {
      report.rows.push_back(to_row(row));
      report.checked = report.checked || row.contains("wrong");
    }
    for (const Json& each : json.value("skipped", Json::array())) {
      report.skipped.push_back({each.at("backend"), each.at("reason")});
    }
    return report;
  } catch (const Json::exception& error) {
    throw Failure(kWrongUse, fmt::format("--from {}: not a results file of 'backplane bench --json': {}",
                                         printable(path), printable(error.what())));
  }
}

bool have_common_row(const BenchReport& a, const BenchReport& b) {
  for (const Measurement& one : a.rows) {
    for (const Measurement& other : b.rows) {
      const bool same = one.backend == other.backend && one.ranks == other.ranks && one.operation == other.operation &&
                        one.bytes == other.bytes;
      if (same) return true;
    }
  }
  return false;
}

}  // namespace

std::string bench_json(const BenchReport& report) {
  Json rows = Json::array();
  for (const Measurement& one : report.rows) rows.push_back(row_json(one, report.checked));
  Json skipped = Json::array();
  for (const Skipped& each : report.skipped) skipped.push_back({{"backend", each.backend}, {"reason", each.reason}});
  const Environment& environment = report.environment;
  Json libraries = Json::object();
  for (const auto& [name, version] : environment.libraries) libraries[name] = version;
  Json whole = {{"format", kFormat}};
  if (!report.title.empty()) whole["title"] = report.title;
  whole.update({{"date", environment.date},
                {"command", environment.command},
                {"machine",
                 {{"host", environment.host},
                  {"system", environment.system},
                  {"cpu", environment.cpu},
                  {"cores", environment.cores},
                  {"memory_gib", environment.memory_gib}}},
                {"libraries", std::move(libraries)},
                {"pinned", report.pinned},
                {"seconds", report.seconds},
                {"rounds", report.rounds},
                {"rows", std::move(rows)},
                {"skipped", std::move(skipped)}});
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

BenchReport read_reports(const std::vector<std::string>& paths) {
  std::vector<BenchReport> reports;
  for (const std::string& path : paths) reports.push_back(read_report(path));
  bool common = false;
  for (size_t i = 0; i < reports.size(); ++i) {
    for (size_t j = 0; j < i; ++j) common = common || have_common_row(reports[i], reports[j]);
  }
  BenchReport joined;
  if (reports.size() == 1) joined.title = reports.front().title;
  for (size_t i = 0; i < reports.size(); ++i) {
    const std::string origin = common ? fmt::format(" ({})", std::filesystem::path(paths[i]).stem().string()) : "";
    joined.checked = joined.checked || reports[i].checked;
    for (Measurement& row : reports[i].rows) {
      row.backend += origin;
      joined.rows.push_back(std::move(row));
    }
    joined.skipped.insert(joined.skipped.end(), reports[i].skipped.begin(), reports[i].skipped.end());
  }
  return joined;
}

}  // namespace backplane::tool
