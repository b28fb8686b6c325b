// Temporary: a bare runner until `backplane check` exists.
#include <cstdio>
#include <cstdlib>

#include "backplane/conformance/conformance.hpp"
using namespace backplane::conformance;
int main(int argc, char** argv) {
  Subject subject;
  subject.path = argv[1];
  Settings settings;
  settings.ranks = std::atoi(argv[2]);
  for (int i = 3; i < argc; ++i) settings.filters.push_back(argv[i]);
  settings.level = Level::kFull;
  if (const char* p = getenv("PATIENCE")) settings.patience = std::atof(p);
  if (const char* p = getenv("BACKEND")) subject.backend = p;
  const Report report = check(subject, settings);
  const char* names[] = {"passed", "FAILED", "skipped"};
  for (const Result& r : report.results) {
    std::printf("%s %s.%s %.2fs %s\n", names[(int)r.verdict], r.group.c_str(), r.name.c_str(), r.seconds, r.reason.c_str());
    for (const Finding& f : r.findings)
      std::printf("    rank %d: expected %s; got %s; while %s\n", f.rank, f.expected.c_str(), f.actual.c_str(), f.doing.c_str());
    if (!r.output.empty()) std::printf("    output: %s\n", r.output.c_str());
  }
  std::printf("%zu results, %.1f s, trouble: %s\n", report.results.size(), report.seconds, report.trouble.c_str());
  return exit_code(report);
}
