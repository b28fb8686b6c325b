// SPDX-License-Identifier: Apache-2.0
//
// Manual pages and shell completions, which the command generates from its help.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

const std::vector<std::string> kSubcommands = {"list",   "info", "check", "bench", "explain",
                                               "doctor", "new",  "trace", "run"};

// The options that the help text of a subcommand lists.
std::set<std::string> options_of(const std::string& subcommand) {
  const std::string help = run({subcommand, "--help"}).out;
  const std::string listed = help.substr(0, help.find("\n\n", help.find("Options:")));
  std::set<std::string> options;
  const std::regex line("\n  (-[-a-z,]*)");
  for (std::sregex_iterator at(listed.begin(), listed.end(), line), end; at != end; ++at) {
    const std::string names = (*at)[1];
    for (size_t begin = 0; begin < names.size(); begin = names.find(',', begin) + 1) {
      options.insert(names.substr(begin, names.find(',', begin) - begin));
      if (names.find(',', begin) == std::string::npos) break;
    }
  }
  return options;
}

class Documents : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(run({"__documents", place_.file("share")}).code, 0); }
  std::string path(const std::string& name) const { return place_.file("share") + "/" + name; }
  std::string bash() const { return path("bash-completion/completions/backplane"); }

  // Bash's completions of the last word.
  std::string completed(const std::vector<std::string>& words) const {
    std::string line = "source " + bash() + "; COMP_WORDS=(backplane";
    for (const std::string& word : words) line += " '" + word + "'";
    const std::string previous = words.size() < 2 ? "backplane" : words[words.size() - 2];
    line += "); COMP_CWORD=" + std::to_string(words.size()) + "; _backplane backplane '" + words.back() + "' '" +
            previous + "'; printf '%s\\n' \"${COMPREPLY[*]}\"";
    const fs::path folder = fs::path(BACKPLANE_TEST_COMMAND).parent_path();
    const Outcome outcome =
        run({"-c", line}, {.environment = {{"PATH", folder.string() + ":/usr/bin:/bin"}}, .program = "/bin/bash"});
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }

  const ScopedDirectory place_;
};

TEST_F(Documents, NameEachSubcommandAndOption) {
  const std::string program = read_file(path("man/man1/backplane.1"));
  const std::string completion = read_file(bash());
  const std::string zsh = read_file(path("zsh/site-functions/_backplane"));
  for (const std::string& subcommand : kSubcommands) {
    EXPECT_TRUE(contains(program, "backplane\\-" + subcommand)) << program;
    EXPECT_TRUE(contains(completion, "    " + subcommand + ")\n")) << completion;
    EXPECT_TRUE(contains(zsh, "    " + subcommand + ")\n")) << zsh;
    const std::string page = read_file(path("man/man1/backplane-" + subcommand + ".1"));
    for (const char* const section :
         {".SH NAME\n", ".SH SYNOPSIS\n", ".SH OPTIONS\n", ".SH EXIT STATUS\n", ".SH EXAMPLES\n", ".SH SEE ALSO\n"}) {
      EXPECT_TRUE(contains(page, section)) << subcommand << " lacks " << section;
    }
    const std::set<std::string> options = options_of(subcommand);
    EXPECT_GE(options.size(), 3U) << subcommand;
    for (const std::string& option : options) {
      const std::string in_roff = std::regex_replace(option, std::regex("-"), "\\-");
      EXPECT_TRUE(contains(page, "\\fB" + in_roff + "\\fR")) << subcommand << ' ' << option;
      EXPECT_TRUE(contains(completed({subcommand, option}), option)) << subcommand << ' ' << option;
      EXPECT_TRUE(contains(zsh, option + "[")) << subcommand << ' ' << option;
    }
  }
}

TEST_F(Documents, RenderWithoutWarnings) {
  if (!fs::exists("/usr/bin/groff")) GTEST_SKIP() << "groff is not installed (Debian: groff-base)";
  for (const auto& page : fs::directory_iterator(path("man/man1"))) {
    const Outcome outcome = run({"-man", "-Tutf8", "-ww", "-z", page.path().string()}, {.program = "/usr/bin/groff"});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.err, "") << page.path();
  }
}

TEST_F(Documents, CompleteSubcommandsValuesAndBackends) {
  EXPECT_EQ(completed({"ex"}), "explain\n");
  EXPECT_EQ(completed({"check", "--format", "j"}), "junit json\n");
  EXPECT_EQ(completed({"check", "--buffers", ""}), "host device\n");
  EXPECT_EQ(completed({"info", "inp"}), "inproc\n");
  EXPECT_EQ(completed({"run", "-n", "2", "--backend", "sel"}), "self\n");
  EXPECT_EQ(completed({"run", "--nn"}), "--nnodes\n");
}

}  // namespace
}  // namespace backplane::test
