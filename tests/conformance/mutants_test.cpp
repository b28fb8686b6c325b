// SPDX-License-Identifier: Apache-2.0
//
// mutants_test SPECIMEN LOAD_MUTANTS GROUP [CASE]: checks that each case catches its mutants.
// mutants_test SPECIMEN LOAD_MUTANTS thorough: the same for the cases of the level thorough, of all groups.
// mutants_test SPECIMEN LOAD_MUTANTS variants [GROUP]: checks that no case fails with the specimen's variants.
//
// SPECIMEN is the plugin, LOAD_MUTANTS a folder of plugins named after the case that must catch them ("load.opens.so",
// "load.opens-2.so"). The plain specimen must pass every case of the group; each case of the levels must and thorough
// needs a mutant, and fails it. Exit status 0: all of that holds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "backplane/conformance/conformance.hpp"
#include "specimen/mutants.hpp"

namespace backplane::conformance {
namespace {

namespace fs = std::filesystem;

constexpr const char* kThorough = "thorough";  // a group of cases by level
constexpr int32_t kFewRanks = 3;
constexpr int32_t kManyRanks = 4;  // what some cases need

struct Candidate {
  std::string name;  // "p2p.tag-match:2"
  std::string bug;
  std::string path;
  bool chosen_by_name = false;  // the specimen under SPECIMEN_MUTANT
};

// From the environment, for slow machines and instrumented builds.
double timeout_scale() {
  const char* text = std::getenv("BACKPLANE_TEST_PATIENCE");
  return text == nullptr ? 1 : std::atof(text);
}

Report run(const std::string& path, const std::string& filter, int32_t ranks) {
  Subject subject;
  subject.path = path;
  Settings settings;
  settings.ranks = ranks;
  settings.filters = {filter};
  settings.seed = 1;
  settings.timeout_scale = timeout_scale();
  return check(subject, settings);
}

// The result of one case, with as many ranks as it takes: to run it at all, and to fail it if `hopes_to_fail` (what
// some bugs do depends on who is faster, and shows more often among more ranks). `harness_error`: of the harness
// itself.
Result run_case(const std::string& path, const std::string& name, bool hopes_to_fail, std::string& harness_error) {
  Result result;
  for (const int32_t ranks : {kFewRanks, kManyRanks}) {
    const Report report = run(path, name, ranks);
    harness_error = report.error;
    result = report.results.empty() ? Result() : report.results.back();
    if (result.verdict == Verdict::kFailed || (result.verdict == Verdict::kPassed && !hopes_to_fail)) break;
  }
  return result;
}

std::string stem(const std::string& mutant) { return mutant.substr(0, mutant.find(':')); }

bool is_case(const std::string& name) {
  const std::vector<Result> all = cases();
  return std::any_of(all.begin(), all.end(),
                     [&name](const Result& each) { return name == each.group + "." + each.name; });
}

std::vector<Candidate> candidates(const std::string& specimen, const fs::path& load_mutants) {
  std::vector<Candidate> all;
  for (const specimen::Mutant& mutant : specimen::all_mutants()) {
    all.push_back({mutant.name, mutant.bug, specimen, true});
  }
  if (!fs::is_directory(load_mutants)) return all;
  for (const fs::directory_entry& file : fs::directory_iterator(load_mutants)) {
    if (file.path().extension() != ".so") continue;
    std::string name = file.path().stem().string();
    const size_t number = name.find_last_not_of("0123456789");
    if (!is_case(name) && number + 1 < name.size() && name[number] == '-') name[number] = ':';
    all.push_back({name, "a file of its own", file.path().string(), false});
  }
  return all;
}

void print(const Result& result, const std::string& harness_error) {
  if (!harness_error.empty()) std::printf("      harness error: %s\n", harness_error.c_str());
  if (!result.reason.empty()) std::printf("      skipped: %s\n", result.reason.c_str());
  for (const Finding& finding : result.findings) {
    std::printf("      rank %d: expected %s; got %s; while %s\n", finding.rank, finding.expected.c_str(),
                finding.actual.c_str(), finding.step.c_str());
  }
}

// Whether the specimen failed because it has no mutant of that name. Such a failure catches no bug.
bool is_unknown(const Result& result) {
  const auto says_so = [](const std::string& text) { return text.find(specimen::kNoSuchMutant) != std::string::npos; };
  return says_so(result.output) || std::any_of(result.findings.begin(), result.findings.end(),
                                               [&says_so](const Finding& finding) { return says_so(finding.actual); });
}

class Hunt {
 public:
  Hunt(std::string specimen, const fs::path& load_mutants, std::string group, std::string only)
      : specimen_(std::move(specimen)),
        group_(std::move(group)),
        only_(std::move(only)),
        candidates_(candidates(specimen_, load_mutants)) {}

  int go() {
    for (const Result& each : cases()) {
      const bool is_thorough = each.level == Level::kThorough;
      if (is_thorough != (group_ == kThorough) || (!is_thorough && each.group != group_)) continue;
      if (!only_.empty() && each.name != only_) continue;
      hunt(each);
    }
    for (const Candidate& each : candidates_) {
      if (each.name.starts_with(group_ + ".") && !is_case(stem(each.name)))
        fail("no case is called like the mutant " + each.name);
    }
    std::printf("%s: %zu of %zu mutants caught", group_.c_str(), caught_, tried_);
    if (not_tried_ > 0) std::printf(", %zu not tried because this machine does not permit their case", not_tried_);
    std::printf("\n");
    if (tried_ == 0 && not_tried_ == 0) fail("no mutant was there to be caught");
    for (const std::string& what : failures_) std::printf("FAILED: %s\n", what.c_str());  // once more, where it is seen
    return failures_.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
  }

 private:
  void fail(const std::string& what) {
    std::printf("FAILED: %s\n", what.c_str());
    failures_.push_back(what);
  }

  void hunt(const Result& which) {
    const std::string name = which.group + "." + which.name;
    std::vector<const Candidate*> mine;
    for (const Candidate& each : candidates_) {
      if (stem(each.name) == name) mine.push_back(&each);
    }
    if (mine.empty()) {
      if (which.level != Level::kFull) fail(name + " has no mutant");
      return;
    }
    ::unsetenv("SPECIMEN_MUTANT");
    std::string harness_error;
    const Result plain = run_case(specimen_, name, false, harness_error);
    if (plain.verdict == Verdict::kSkipped && harness_error.empty()) {
      std::printf("  %s cannot be run here: %s\n", name.c_str(), plain.reason.c_str());
      not_tried_ += mine.size();
      return;
    }
    if (plain.verdict != Verdict::kPassed || !harness_error.empty()) {
      fail("the plain specimen does not pass " + name);
      print(plain, harness_error);
    }
    for (const Candidate* each : mine) pursue(name, *each);
    std::fflush(stdout);
  }

  void pursue(const std::string& name, const Candidate& mutant) {
    ++tried_;
    if (mutant.chosen_by_name) {
      ::setenv("SPECIMEN_MUTANT", mutant.name.c_str(), 1);
    } else {
      ::unsetenv("SPECIMEN_MUTANT");
    }
    std::string harness_error;
    const Result result = run_case(mutant.path, name, true, harness_error);
    const bool caught = harness_error.empty() && result.verdict == Verdict::kFailed && !result.findings.empty();
    if (mutant.chosen_by_name && is_unknown(result)) {
      fail("the specimen does not know its mutant " + mutant.name + "; was it built from older sources?");
    } else if (caught) {
      ++caught_;
      std::printf("  caught %s (%s) in %.1f s\n", mutant.name.c_str(), mutant.bug.c_str(), result.seconds);
    } else {
      fail(mutant.name + " (" + mutant.bug + ") was not caught");
    }
    print(result, harness_error);
  }

  const std::string specimen_;
  const std::string group_;
  const std::string only_;
  const std::vector<Candidate> candidates_;
  size_t tried_ = 0;
  size_t caught_ = 0;
  size_t not_tried_ = 0;
  std::vector<std::string> failures_;
};

// The variants are correct backends. They share the specimen's note, so groups that compare it are left out.
int check_variants(const std::string& path, const std::string& only) {
  bool passed = true;
  for (const specimen::Mutant& variant : specimen::variants()) {
    ::setenv("SPECIMEN_MUTANT", variant.name, 1);
    Subject subject;
    subject.path = path;
    Settings settings;
    settings.ranks = kManyRanks;
    settings.seed = 1;
    settings.timeout_scale = timeout_scale();
    for (const Result& each : cases()) {
      if (each.level != Level::kMust || each.group == "load") continue;
      if (only.empty() || each.group == only) settings.filters.push_back(each.group + "." + each.name);
    }
    const Report report = check(subject, settings);
    size_t skipped = 0;
    for (const Result& each : report.results) {
      if (each.verdict == Verdict::kSkipped) ++skipped;
      if (each.verdict == Verdict::kPassed) continue;
      std::printf("%s %s.%s\n", each.verdict == Verdict::kFailed ? "FAILED" : "skipped", each.group.c_str(),
                  each.name.c_str());
      print(each, "");
      const bool knows = each.reason.find("whose world is another one") == std::string::npos;  // Needs::without
      passed = passed && each.verdict != Verdict::kFailed && knows;
    }
    passed = passed && report.error.empty() && skipped < report.results.size();
    std::printf("%s: %zu cases, %zu of them skipped %s\n", variant.name, report.results.size(), skipped,
                report.error.c_str());
  }
  return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace backplane::conformance

int main(int count, char** arguments) {
  if (count < 4 || count > 5) {
    std::fprintf(stderr, "usage: mutants_test SPECIMEN LOAD_MUTANTS GROUP [CASE]\n");
    return 2;
  }
  if (std::string(arguments[3]) == "variants") {
    return backplane::conformance::check_variants(arguments[1], count > 4 ? arguments[4] : "");
  }
  return backplane::conformance::Hunt(arguments[1], arguments[2], arguments[3], count > 4 ? arguments[4] : "").go();
}
