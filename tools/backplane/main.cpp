// SPDX-License-Identifier: Apache-2.0
//
// The command `backplane`.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>

#include "backplane/backplane.h"
#include "commands.hpp"
#include "common/failure.hpp"

namespace backplane::tool {
namespace {

constexpr const char* kAbout = "Start, measure and check programs over Backplane's communication backends";
constexpr const char* kEnvironment = R"(
Environment:
  BACKPLANE_PLUGIN_PATH     directories to search first for plugins, separated by colons
  BACKPLANE_PLUGINS_ALLOW   ids of the only backends to use, separated by commas
  BACKPLANE_PLUGINS_DENY    ids of backends not to use, separated by commas
  BACKPLANE_BACKEND         backend of groups that name none
  BACKPLANE_LOG             debug, info, warn (default), error or off
  NO_COLOR                  no colours, if not empty

Examples:
  backplane list --probe
  backplane run -n 4 ./train
  backplane bench --backend gloo --backend zmq
  backplane check ./backplane_acme.so

'backplane SUBCOMMAND --help' describes a subcommand.)";

// Index of the program in `backplane run [OPTION]... [--] PROGRAM`: the "--", or the first word that is neither an
// option nor an option's value. CLI11 would take the program's options for its own.
size_t program_begin(const CLI::App& run, const std::vector<std::string>& words, size_t at) {
  for (; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (word == "--" || word.size() < 2 || word.front() != '-') return at;
    const bool is_long = word[1] == '-';
    const bool holds_value = is_long ? word.find('=') != std::string::npos : word.size() > 2;
    const CLI::Option* option = run.get_option_no_throw(holds_value ? word.substr(0, 2) : word);
    if (!holds_value && option != nullptr && option->get_expected_min() > 0) ++at;
  }
  return words.size();
}

void check_command(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty() || words.front().starts_with('-')) return;
  std::string names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == words.front()) return;
    if (command->get_group().empty()) continue;  // hidden
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  throw Failure(kWrongUse, fmt::format("unknown subcommand '{}'; the subcommands are {}", words.front(), names));
}

int report(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    return app.exit(error);  // --help and --version
  }
  std::string sentence = error.what();
  sentence.erase(std::remove(sentence.begin(), sentence.end(), '\n'), sentence.end());
  const auto used = app.get_subcommands();
  const std::string subcommand =
      used.empty() || used.front()->get_group().empty() ? "" : " " + used.front()->get_name();
  fmt::print(stderr, "backplane: {} (see 'backplane{} --help')\n", sentence, subcommand);
  return kWrongUse;
}

int main(int count, char** arguments) {
  int exit_code = 0;
  std::vector<std::string> program;
  CLI::App app(kAbout, "backplane");
  app.set_version_flag("--version",
                       fmt::format("backplane {} (plugin ABI {}.{})", bp_version(), BP_ABI_MAJOR, BP_ABI_MINOR));
  app.footer(kEnvironment);
  app.require_subcommand(1);
  add_list(app, exit_code);
  add_info(app, exit_code);
  add_check(app, exit_code);
  add_bench(app, exit_code);
  add_explain(app, exit_code);
  add_doctor(app, exit_code);
  add_new(app, exit_code);
  add_trace(app);
  const CLI::App* run = add_run(app, program, exit_code);
  add_query(app);
  add_bench_rank(app);
  add_documents(app);

  std::vector<std::string> words(arguments + std::min(count, 1), arguments + count);
  if (!words.empty() && words.front() == run->get_name()) {
    const size_t begin = program_begin(*run, words, 1);
    const size_t skip = begin < words.size() && words[begin] == "--" ? 1 : 0;
    program.assign(words.begin() + static_cast<ptrdiff_t>(begin + skip), words.end());
    words.resize(begin);
  }
  try {
    check_command(app, words);
    std::reverse(words.begin(), words.end());  // CLI11 takes them in reverse order
    app.parse(words);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return report(app, error);
  } catch (const Failure& failure) {
    fmt::print(stderr, "backplane: {}\n", failure.what());
    return failure.exit_code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "backplane: {}\n", error.what());
    return kFailed;
  }
}

}  // namespace
}  // namespace backplane::tool

int main(int count, char** arguments) {
  ::signal(SIGCHLD, SIG_DFL);  // if it were ignored, the kernel would reap the children
  // Opens missing standard descriptors. Otherwise a pipe or socket of this process would get their number.
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0) return backplane::tool::kFailed;
  }
  return backplane::tool::main(count, arguments);
}
