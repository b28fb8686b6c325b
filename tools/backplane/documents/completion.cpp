// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "common/table.hpp"
#include "documents/model.hpp"

namespace backplane::tool {
namespace {

// The first column of the table of backends, which ends with an empty line; notes are indented.
constexpr const char* kListBackends =
    "backplane list 2>/dev/null | awk 'NR > 1 && /^$/ { exit } NR > 1 && /^[^ ]/ { print $1 }'";

std::string option_names(const CommandModel& command) {
  std::vector<std::string> names;
  for (const OptionModel& option : command.options) names.insert(names.end(), option.names.begin(), option.names.end());
  return join(names, " ");
}

std::string bash_reply(const OptionModel& option) {
  switch (option.completes) {
    case Completes::kChoices:
      return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$cur\"))", join(option.choices, " "));
    case Completes::kFiles:
      return "COMPREPLY=($(compgen -f -- \"$cur\"))";
    case Completes::kDirectories:
      return "COMPREPLY=($(compgen -d -- \"$cur\"))";
    case Completes::kBackends:
      return "COMPREPLY=($(compgen -W \"$(_backplane_backends)\" -- \"$cur\"))";
    default:
      return "COMPREPLY=()";
  }
}

std::string bash_values(const CommandModel& command) {
  std::string cases;
  for (const OptionModel& option : command.options) {
    if (option.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) patterns.push_back(fmt::format("'{} {}'", command.name, name));
    cases += fmt::format("    {})\n      {}\n      return ;;\n", join(patterns, " | "), bash_reply(option));
  }
  return cases;
}

// Within single quotes and the brackets of _arguments.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else if (c == '[' || c == ']' || c == ':' || c == '\\') {
      result += std::string("\\") + c;
    } else {
      result += c;
    }
  }
  return result;
}

std::string zsh_action(const OptionModel& option) {
  switch (option.completes) {
    case Completes::kChoices:
      return fmt::format("({})", join(option.choices, " "));
    case Completes::kFiles:
      return "_files";
    case Completes::kDirectories:
      return "_files -/";
    case Completes::kBackends:
      return "_backplane_backends";
    default:
      return " ";
  }
}

std::string zsh_arguments(const CommandModel& command) {
  std::string text;
  for (const OptionModel& option : command.options) {
    const std::string value =
        option.value.empty()
            ? ""
            : fmt::format(":{}:{}", zsh_text(option.value.substr(0, option.value.find(' '))), zsh_action(option));
    for (const std::string& name : option.names) {
      text +=
          fmt::format(" \\\n        '{}{}[{}]{}'", option.repeatable ? "*" : "", name, zsh_text(option.about), value);
    }
  }
  for (const OptionModel& positional : command.positionals) {
    const char* const kind = positional.repeatable ? "*" : "";
    text += fmt::format(" \\\n        '{}:{}:{}'", kind, zsh_text(positional.value), zsh_action(positional));
  }
  if (command.name == "run") text += " \\\n        '(-)1:program:_command_names -e' '*::argument:_normal'";
  return text;
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::vector<std::string> names;
  std::string values;
  std::string options;
  for (const CommandModel& command : command_models(app)) {
    names.push_back(command.name);
    values += bash_values(command);
    std::string positional = "COMPREPLY=()";
    if (!command.positionals.empty()) positional = bash_reply(command.positionals.front());
    if (command.name == "run") positional = "COMPREPLY=($(compgen -c -- \"$cur\"))";
    options += fmt::format("    {})\n      words='{}'\n      [[ $cur == -* ]] || {}\n      ;;\n", command.name,
                           option_names(command), positional);
  }
  return fmt::format(R"(# bash completion for backplane, made by the command itself.
_backplane_backends() {{
  {0}
}}

_backplane() {{
  local cur=$2 prev=$3 command= words= word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    if [[ $word != -* ]]; then command=$word; break; fi
  done
  COMPREPLY=()
  case "$command $prev" in
{1}  esac
  case $command in
{2}    '')
      words='{3} {4}' ;;
  esac
  [[ -n $command && $cur != -* ]] || COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o bashdefault -o default -F _backplane backplane
)",
                     kListBackends, values, options, join(names, " "), option_names(command_model(app)));
}

std::string zsh_completion(const CLI::App& app) {
  std::string names;
  std::string cases;
  for (const CommandModel& command : command_models(app)) {
    names += fmt::format("    '{}:{}'\n", command.name, zsh_text(command.about));
    cases += fmt::format("    {})\n      _arguments{}\n      ;;\n", command.name, zsh_arguments(command));
  }
  return fmt::format(R"zsh(#compdef backplane
# zsh completion for backplane, made by the command itself.
_backplane_backends() {{
  local -a backends
  backends=(${{(f)"$({0})"}})
  compadd -a backends
}}

_backplane() {{
  local -a commands
  commands=(
{1}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{2}  esac
}}
_backplane "$@"
)zsh",
                     kListBackends, names, cases);
}

}  // namespace backplane::tool
