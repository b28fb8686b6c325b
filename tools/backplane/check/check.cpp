// SPDX-License-Identifier: Apache-2.0
//
// backplane check: tests a backend against the rules of the plugin ABI.
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>

#include "check/api_backend.hpp"
#include "check/filters.hpp"
#include "check/known_failures.hpp"
#include "check/subject.hpp"
#include "check/suite.hpp"
#include "commands.hpp"
#include "common/failure.hpp"
#include "common/table.hpp"
#include "run/pmix.hpp"
#include "run/rank_environment.hpp"

namespace backplane::tool {
namespace {

using conformance::Level;
using conformance::Report;

constexpr const char* kCheckFooter = R"(
The ranks run in child processes. The report names each failed case with rank, expected and actual value, and a command
that runs this case alone.

--expect-failures FILE names cases that fail for a known reason, for example a fault of the library below the backend.
A line is 'CASE: REASON', or 'CASE (intermittent): REASON' if the case may also pass; a line that begins with # is a
comment. The report lists their failures as "known:" and the exit code ignores them. A listed case that passes fails,
unless it is intermittent.

A line per case is printed as soon as the case has ended, to stdout before a text report, else to stderr. If SIGINT,
SIGTERM or SIGHUP ends the check, the report has the cases before.

Exit codes: 0 all rules hold; 1 a rule is broken, or Backplane refuses the plugin; 2 wrong use, the backend's probe
refuses this machine, or the check was ended early or failed itself. Failures of the level full do not count.

Examples:
  backplane check ./backplane_acme.so -n 4
  backplane check zmq --filter p2p --filter 'collectives.all-*'
  backplane check gloo --option iface=lo --format junit -o report.xml
  backplane check --torch gloo -n 2 --timeout-scale 3
  backplane check --api shm -n 2
  BACKPLANE_IMAGINED_HOSTS=0,0,1,1 backplane check --api shm+gloo)";

struct CheckSettings {
  std::string subject;
  std::string backend;
  std::string torch;
  int32_t ranks = 4;
  std::string level = "must";
  std::vector<std::string> filters;
  std::string format = "text";
  std::string output;
  std::string badge;
  uint64_t seed = 0;
  double timeout_scale = 1;
  std::vector<std::string> options;
  std::string expected_failures;
  std::string buffers = "host";
  bool api = false;
  bool thorough = false;
  bool list = false;
};

std::map<std::string, std::string> key_values(const std::vector<std::string>& words) {
  std::map<std::string, std::string> result;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Failure(kWrongUse, fmt::format("--option {}: expected KEY=VALUE", printable(word)));
    }
    if (!result.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
      throw Failure(kWrongUse, fmt::format("--option {} is given twice", printable(word.substr(0, equals))));
    }
  }
  return result;
}

// The beginning of the command that reproduces a failure. The library appends the subject and the case.
std::string reproduction(const CheckSettings& settings) {
  std::string command = "backplane check";
  if (settings.api) command += " --api";
  if (!settings.backend.empty()) command += " --backend " + shell_quoted(settings.backend);
  for (const std::string& option : settings.options) command += " --option " + shell_quoted(option);
  if (settings.buffers != "host") command += " --buffers " + settings.buffers;
  if (!settings.expected_failures.empty()) {
    command += " --expect-failures " + shell_quoted(settings.expected_failures);
  }
  if (settings.timeout_scale != 1) command += fmt::format(" --timeout-scale {:g}", settings.timeout_scale);
  return command;
}

std::string formatted(const Report& report, const std::string& format, bool colour) {
  if (format == "tap") return conformance::to_tap(report);
  if (format == "junit") return conformance::to_junit(report);
  if (format == "json") return conformance::to_json(report);
  return conformance::to_text(report, colour);
}

bool wants_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) != 0 && (no_colour == nullptr || *no_colour == '\0');
}

void write_report(const std::string& path, const std::string& text) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "we"), std::fclose);
  if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() || std::fflush(file.get()) != 0) {
    throw Failure(kFailed, fmt::format("cannot write the report to {}: {}", printable(path), errno_text(errno)));
  }
}

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Failure(kFailed, fmt::format("cannot print the report: {}", errno_text(errno)));
  }
}

// For a plugin that the core refuses, only the cases about loading it are run.
std::vector<std::string> loading_only(const std::vector<std::string>& names) {
  std::vector<std::string> result;
  for (const std::string& name : names) {
    if (name.starts_with("load.")) result.push_back(name);
  }
  return result;
}

std::string refusal_line(const FoundSubject& found) {
  return fmt::format("Backplane refuses this plugin: {}\n", printable(found.refusal));
}

// The report, and the badge if one is wanted.
std::vector<std::string> texts_of(const CheckSettings& settings, const Report& report, bool colour) {
  std::vector<std::string> texts = {formatted(report, settings.format, colour)};
  if (!settings.badge.empty()) texts.push_back(conformance::to_badge(report));
  return texts;
}

void put(const CheckSettings& settings, const std::vector<std::string>& texts) {
  if (texts.empty()) return;
  if (settings.output.empty()) {
    print(texts.front());
  } else {
    write_report(settings.output, texts.front());
  }
  if (texts.size() > 1) write_report(settings.badge, texts[1]);
}

// The refusal as the whole report. Returns the exit code.
int report_refusal(const CheckSettings& settings, const FoundSubject& found) {
  Report report;
  report.subject = found.subject.path;
  report.backend = found.subject.backend;
  report.ranks = settings.ranks;
  report.error = "Backplane refuses this plugin: " + found.refusal;
  std::vector<std::string> texts = texts_of(settings, report, false);
  if (settings.format == "text") texts.front() = refusal_line(found);
  put(settings, texts);
  return kFailed;
}

// Puts the C++ API between the suite and the backend.
void test_api(FoundSubject& found, conformance::Settings& suite) {
  if (found.subject.backend.empty()) {
    throw Failure(kWrongUse,
                  "--api: name a backend, not a file; programs find a backend by its name, also in the folders of "
                  "BACKPLANE_PLUGIN_PATH");
  }
  if (!found.refusal.empty()) throw Failure(kFailed, found.refusal);
  suite.known_failures.merge(api_differences());
  found.subject.entry = api_plugin(found.subject.backend, found.subject.options);
  found.subject.path.clear();
  found.subject.options.clear();
}

int check(const CheckSettings& settings) {
  if (!settings.badge.empty() && !settings.filters.empty()) {
    throw Failure(kWrongUse, "--badge: a badge stands for the whole check; omit --filter");
  }
  const Level level = settings.thorough ? Level::kThorough : level_of(settings.level);
  conformance::Settings suite;
  suite.ranks = settings.ranks;
  suite.level = level;
  suite.seed = settings.seed;
  suite.timeout_scale = settings.timeout_scale;
  suite.on_device = settings.buffers == "device";
  suite.command = reproduction(settings);
  suite.filters = chosen_cases(settings.filters, level);
  if (!settings.expected_failures.empty()) suite.known_failures = read_known_failures(settings.expected_failures);
  suite.in_child = [api = settings.api](int32_t rank) {
    for (const auto& [name, value] : extra_variables(rank)) ::setenv(name.c_str(), value.c_str(), 1);
    if (api) load_api_backend();
  };
  suite.pmix_server = pmix_server();
  FoundSubject found =
      find_subject(settings.subject, settings.backend, key_values(settings.options), settings.timeout_scale);
  if (settings.api) {
    test_api(found, suite);
  } else if (found.is_composite) {
    throw Failure(kWrongUse, fmt::format("{} is a composite of the core, not a plugin; check it with --api",
                                         printable(settings.subject)));
  }
  for (const std::string& file : {settings.output, settings.badge}) {
    if (!file.empty()) write_report(file, "");  // reports an unwritable file before the check
  }
  if (!found.refusal.empty()) {
    suite.filters = loading_only(suite.filters);
    if (!found.may_load || suite.filters.empty()) return report_refusal(settings, found);
    FILE* const stream = settings.format == "text" && settings.output.empty() ? stdout : stderr;
    fmt::print(stream, "{}", refusal_line(found));
    std::fflush(stream);
  }
  const bool colour = settings.output.empty() && wants_colour();
  FILE* const stream = settings.output.empty() && settings.format == "text" ? stdout : stderr;
  const FinishedSuite done = run_suite(found.subject, suite, stream, [&settings, colour](const Report& report) {
    return texts_of(settings, report, colour);
  });
  put(settings, done.texts);
  if (!done.trouble.empty()) throw Failure(done.exit_code, done.trouble);
  return found.refusal.empty() ? done.exit_code : std::max(done.exit_code, kFailed);
}

}  // namespace

void add_check(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<CheckSettings>();
  CLI::App* command = app.add_subcommand("check", "Test a backend against the rules of the plugin ABI");
  command->footer(kCheckFooter);
  command
      ->add_option("subject", settings->subject,
                   "A plugin file (a path, or a name that ends in .so), or the id of a backend")
      ->option_text("FILE|BACKEND");
  command->add_option("-n,--ranks", settings->ranks, "Ranks, 1 to 64")->option_text("N (4)")->check(CLI::Range(1, 64));
  command
      ->add_option("--level", settings->level,
                   "must: the rules; full: also cases that are slow, large or about quality; thorough: all cases")
      ->option_text("LEVEL (must)")
      ->check(CLI::IsMember({"must", "full", "thorough"}));
  command->add_flag("--thorough", settings->thorough, "The same as --level thorough: all cases, up to ten minutes");
  command
      ->add_option("--filter", settings->filters,
                   "Run these alone: a group, a case, or a pattern with * and ?; repeatable")
      ->option_text("GROUP[.CASE]")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--expect-failures", settings->expected_failures,
                   "Cases that fail for a known reason, which the exit code ignores")
      ->option_text("FILE");
  command->add_option("--format", settings->format, "Format of the report: text, tap, junit or json")
      ->option_text("FORMAT (text)")
      ->check(CLI::IsMember({"text", "tap", "junit", "json"}));
  command->add_option("-o,--output", settings->output, "Write the report to this file instead of stdout")
      ->option_text("FILE");
  command
      ->add_option("--badge", settings->badge,
                   "Write an SVG image with the result for web pages to this file in addition")
      ->option_text("FILE");
  command->add_option("--seed", settings->seed, "Seed of the random numbers; 0 chooses one")->option_text("NUMBER");
  command->add_option("--timeout-scale", settings->timeout_scale, "Factor on all deadlines, for slow machines")
      ->option_text("FACTOR (1)")
      ->check(CLI::Range(0.1, 1000.0));
  command->add_option("--option", settings->options, "An option of the backend; repeatable")
      ->option_text("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--buffers", settings->buffers,
                   "Memory of the operations: host, or device for the backend's device memory")
      ->option_text("MEMORY (host)")
      ->check(CLI::IsMember({"host", "device"}));
  command->add_option("--backend", settings->backend, "Id of the backend, if the file holds several")
      ->option_text("ID");
  command
      ->add_option("--torch", settings->torch,
                   "Test this backend of torch.distributed, through the backend c10d: gloo, or one that registers with "
                   "torch")
      ->option_text("NAME")
      ->excludes("subject");
  command
      ->add_flag("--api", settings->api, "Test libbackplane over this backend: each operation is a call of the C++ API")
      ->excludes("--backend");
  command->add_flag("--list", settings->list, "List the cases, do not check");
  command->callback([settings, &exit_code] {
    if (settings->list) {
      fmt::print("{}", case_table());
      exit_code = 0;
      return;
    }
    if (!settings->torch.empty()) {
      const auto options = key_values(settings->options);
      if (const auto other = options.find("backend"); other != options.end()) {
        throw Failure(kWrongUse, fmt::format("--torch {} and --option backend={} both name the backend of torch; leave "
                                             "one of them out",
                                             printable(settings->torch), printable(other->second)));
      }
      settings->subject = "c10d";
      settings->options.insert(settings->options.begin(), "backend=" + settings->torch);
    }
    if (settings->subject.empty()) {
      throw Failure(kWrongUse, "no plugin file or backend is given; usage: backplane check [OPTION]... FILE|BACKEND");
    }
    exit_code = check(*settings);
  });
}

}  // namespace backplane::tool
