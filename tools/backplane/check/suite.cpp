// SPDX-License-Identifier: Apache-2.0
#include "check/suite.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "backplane/base/subprocess.hpp"
#include "common/failure.hpp"
#include "common/subprocess.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

using conformance::Progress;
using conformance::Report;

using Write = std::function<std::vector<std::string>(const Report&)>;

constexpr std::chrono::minutes kSilence(10);  // longer than any case may take

// The first character of a line from the child.
constexpr char kRunning = 'c';  // the progress line of the case that begins
constexpr char kResult = 'r';   // the result line of a case
constexpr char kReport = 's';   // the report so far, as a JSON array of texts

// Catches the signals that end the command, as long as it exists. Restores them in the destructor.
class EndingSignals {
 public:
  EndingSignals() {
    caught_ = 0;
    struct sigaction action = {};
    action.sa_handler = [](int number) { caught_ = number; };
    for (size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
    }
  }
  ~EndingSignals() { restore(); }
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  void restore() const {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  static int caught() { return caught_; }  // 0: none

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  static inline volatile sig_atomic_t caught_ = 0;
  std::array<struct sigaction, kSignals.size()> before_ = {};
};

// The lines of results on `stream`, and on a terminal the case that runs, in a line of stderr that is overwritten.
class Screen {
 public:
  explicit Screen(FILE* stream) : stream_(stream) {}

  void show_running(const std::string& text) {
    if (!terminal_) return;
    fmt::print(stderr, "\r{}\x1b[K", printable(text));
    std::fflush(stderr);
    shown_ = true;
  }
  void print_result(const std::string& line) {
    clear();
    fmt::print(stream_, "{}\n", printable(line));
    std::fflush(stream_);
  }
  void clear() {
    if (!shown_) return;
    fmt::print(stderr, "\r\x1b[K");
    std::fflush(stderr);
    shown_ = false;
  }

 private:
  FILE* const stream_;
  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
};

std::vector<std::string> texts_of(const std::string& array) {
  const nlohmann::json texts = nlohmann::json::parse(array, nullptr, false);
  return texts.is_array() ? texts.get<std::vector<std::string>>() : std::vector<std::string>();
}

// The child's side.
void tell(const Progress& progress, const WriteLine& write_line, const Write& write) {
  if (progress.last != nullptr) return write_line(kResult + conformance::result_line(*progress.last));
  Report so_far = *progress.so_far;
  so_far.error = fmt::format("it ended during {}, case {} of {}", progress.running, progress.done + 1, progress.total);
  write_line(kReport + nlohmann::json(write(so_far)).dump());
  write_line(kRunning + conformance::progress_line(progress));
}

}  // namespace

FinishedSuite run_suite(const conformance::Subject& subject, conformance::Settings settings, FILE* stream,
                        const Write& write) {
  const EndingSignals signals;
  const auto body = [&](const WriteLine& write_line) {
    signals.restore();
    settings.on_progress = [&](const Progress& progress) { tell(progress, write_line, write); };
    const Report report = conformance::check(subject, settings);
    return std::to_string(conformance::exit_code(report)) + " " + nlohmann::json(write(report)).dump();
  };
  Screen screen(stream);
  std::string running = "before the first case";
  std::string so_far;
  const auto take = [&](const std::string& line) {
    if (line.starts_with(kResult)) {
      screen.print_result(line.substr(1));
    } else if (line.starts_with(kReport)) {
      so_far = line.substr(1);
    } else {
      running = "during " + line.substr(line.rfind(' ') + 1);
      screen.show_running(line.substr(1));
    }
  };
  const std::chrono::duration<double> silence = kSilence * std::max(1.0, settings.timeout_scale);
  const SubprocessResult child =
      run_subprocess(body, take, std::chrono::duration_cast<std::chrono::nanoseconds>(silence),
                     [] { return EndingSignals::caught() != 0; });
  screen.clear();
  if (child.complete) {
    return {std::atoi(child.result.c_str()), texts_of(child.result.substr(child.result.find(' ') + 1)), ""};
  }
  FinishedSuite early;
  early.texts = texts_of(so_far);
  if (const int number = EndingSignals::caught(); number != 0) {
    early.exit_code = kWrongUse;
    early.trouble =
        fmt::format("{} ended the check {}; the report has the cases before", base::signal_name(number), running);
  } else {
    early.exit_code = kFailed;
    early.trouble = fmt::format(
        "the process that ran the check {} {}; unless it was ended from outside, the plugin did "
        "that: it must not signal other processes",
        child.error, running);
  }
  return early;
}

}  // namespace backplane::tool
