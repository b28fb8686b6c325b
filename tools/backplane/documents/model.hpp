// SPDX-License-Identifier: Apache-2.0
//
// Manual pages and shell completions, made from the command line's own description.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace backplane::tool {

constexpr const char* kDocumentsCommand = "__documents";

enum class Completes { kNothing, kFiles, kDirectories, kBackends, kChoices };

// One option or positional argument as its documents show it.
struct OptionModel {
  std::vector<std::string> names;  // "-n", "--ranks"; empty for a positional argument
  std::string value;               // "N,... (2)"; empty for a flag
  std::string about;
  Completes completes = Completes::kNothing;
  std::vector<std::string> choices;
  bool required = false;
  bool repeatable = false;
};

struct CommandModel {
  std::string name;  // "bench"; of the whole program "backplane"
  std::string about;
  std::string footer;
  std::vector<OptionModel> options;
  std::vector<OptionModel> positionals;
};

// Without hidden subcommands.
std::vector<CommandModel> command_models(const CLI::App& app);
CommandModel command_model(const CLI::App& app);

std::string manual_page(const CLI::App& app, const CommandModel& command);  // roff, man(7)
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);

}  // namespace backplane::tool
