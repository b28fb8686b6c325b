// SPDX-License-Identifier: Apache-2.0
//
// A report as one JSON object.
#include <nlohmann/json.hpp>

#include "names.hpp"
#include "report_words.hpp"

namespace backplane::conformance {
namespace {

using Json = nlohmann::ordered_json;

Json of(const Finding& finding) {
  return {{"rank", finding.rank},
          {"expected", harmless(finding.expected)},
          {"actual", harmless(finding.actual)},
          {"step", harmless(finding.step)}};
}

Json of(const Result& result) {
  Json object = {{"group", result.group},
                 {"name", result.name},
                 {"about", result.about},
                 {"level", level_name(result.level)},
                 {"verdict", verdict_name(result.verdict)}};
  if (result.verdict == Verdict::kSkipped) object["reason"] = harmless(result.reason);
  if (!result.known.empty()) object["known"] = harmless(result.known);
  if (result.outdated) object["outdated"] = true;
  for (const Finding& finding : result.findings) object["findings"].push_back(of(finding));
  if (!result.output.empty()) object["output"] = harmless(result.output);
  object["seconds"] = result.seconds;
  object["seed"] = result.seed;
  if (!result.reproduce.empty()) object["reproduce"] = harmless(result.reproduce);
  return object;
}

Json of(const Cell& cell) {
  Json object = {{"op", op_name(cell.op)}, {"dtype", dtype_name(cell.dtype)}};
  if (is_reduction(cell.op)) object["reduce_op"] = reduce_op_name(cell.reduce_op);
  object["memory"] = memory_name(cell.memory);
  object["passed"] = cell.passed;
  object["failed"] = cell.failed;
  return object;
}

}  // namespace

std::string to_json(const Report& report) {
  const auto [passed, failed, skipped, known] = count_verdicts(report);
  Json object = {{"subject", harmless(report.subject)},
                 {"backend", harmless(report.backend)},
                 {"version", harmless(report.version)},
                 {"ranks", report.ranks},
                 {"level", level_name(report.level)},
                 {"seed", report.seed},
                 {"seconds", report.seconds},
                 {"notes", Json::array()},
                 {"error", harmless(report.error)},
                 {"passed", passed},
                 {"failed", failed},
                 {"known", known},
                 {"skipped", skipped},
                 {"results", Json::array()},
                 {"matrix", Json::array()}};
  for (const std::string& note : report.notes) object["notes"].push_back(harmless(note));
  for (const Result& result : report.results) object["results"].push_back(of(result));
  for (const Cell& cell : report.matrix) object["matrix"].push_back(of(cell));
  return object.dump(2) + "\n";
}

}  // namespace backplane::conformance
