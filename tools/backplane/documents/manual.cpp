// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <sstream>
#include <string_view>
#include <utility>

#include "backplane/backplane.h"
#include "documents/model.hpp"

namespace backplane::tool {
namespace {

// Paragraphs of a footer that begin with one of these become sections.
constexpr std::array<std::pair<std::string_view, const char*>, 3> kSections = {
    {{"Examples:", "EXAMPLES"}, {"Exit codes:", "EXIT STATUS"}, {"Environment:", "ENVIRONMENT"}}};

std::string escaped(std::string_view text) {
  std::string result;
  if (!text.empty() && (text.front() == '.' || text.front() == '\'')) result = "\\&";
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else if (c == '\'') {
      result += "\\(aq";
    } else {
      result += c;
    }
  }
  return result;
}

// Indented lines are shown as they stand, the others are filled.
std::string paragraphs(const std::string& text) {
  std::string result;
  bool literal = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool indented = line.starts_with("  ");
    if (indented != literal) result += indented ? ".PP\n.nf\n" : ".fi\n";
    literal = indented;
    if (line.empty()) {
      result += ".PP\n";
      continue;
    }
    for (const auto& [title, section] : kSections) {
      if (!line.starts_with(title)) continue;
      if (result.ends_with(".PP\n")) result.resize(result.size() - 4);
      result += fmt::format(".SH {}\n", section);
      line.erase(0, title.size());
      line.erase(0, line.find_first_not_of(' '));
    }
    if (!line.empty()) result += escaped(line) + "\n";
  }
  if (literal) result += ".fi\n";
  // man(7): no paragraph break directly after a heading or before another break.
  for (const std::string_view repeated : {".PP\n.PP\n", ".PP\n.SH"}) {
    for (size_t at = 0; (at = result.find(repeated, at)) != std::string::npos;) result.erase(at, 4);
  }
  for (const auto& [title, section] : kSections) {
    const std::string heading = fmt::format(".SH {}\n.PP\n", section);
    const size_t at = result.find(heading);
    if (at != std::string::npos) result.erase(at + heading.size() - 4, 4);
  }
  return result;
}

std::string option_entry(const OptionModel& option) {
  std::string names;
  for (const std::string& name : option.names) {
    names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", escaped(name));
  }
  if (!option.value.empty()) {
    const size_t space = option.value.find(' ');  // "SECONDS (5)": the default follows
    names += fmt::format("{}\\fI{}\\fR{}", names.empty() ? "" : " ", escaped(option.value.substr(0, space)),
                         space == std::string::npos ? "" : escaped(option.value.substr(space)));
  }
  return fmt::format(".TP\n{}\n{}\n", names, escaped(option.about));
}

std::string usage(const CommandModel& command, bool is_program) {
  if (is_program) return "\\fBbackplane\\fR \\fISUBCOMMAND\\fR [\\fIOPTION\\fR]...";
  std::string line = fmt::format("\\fBbackplane {}\\fR [\\fIOPTION\\fR]...", command.name);
  for (const OptionModel& positional : command.positionals) {
    const std::string value = fmt::format("\\fI{}\\fR", escaped(positional.value));
    line += positional.required ? " " + value : " [" + value + "]";
    if (positional.repeatable) line += "...";
  }
  if (command.name == "run") line += " [\\-\\-] \\fIPROGRAM\\fR [\\fIARGUMENT\\fR]...";
  return line;
}

}  // namespace

std::string manual_page(const CLI::App& app, const CommandModel& command) {
  const bool is_program = command.name == app.get_name();
  const std::string name = is_program ? command.name : fmt::format("backplane-{}", command.name);
  std::string upper;
  for (const char c : name) upper += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  std::string text = fmt::format(".TH {} 1 \"\" \"Backplane {}\" \"Backplane Manual\"\n.SH NAME\n{} \\- {}\n", upper,
                                 bp_version(), escaped(name), escaped(command.about));
  text += fmt::format(".SH SYNOPSIS\n{}\n.SH DESCRIPTION\n{}.\n", usage(command, is_program), escaped(command.about));
  std::string options;
  for (const OptionModel& positional : command.positionals) options += option_entry(positional);
  for (const OptionModel& option : command.options) options += option_entry(option);
  text += fmt::format(".SH OPTIONS\n{}", options);
  if (is_program) {
    text += ".SH SUBCOMMANDS\n";
    for (const CommandModel& each : command_models(app)) {
      text += fmt::format(".TP\n\\fBbackplane\\-{}\\fR(1)\n{}\n", each.name, escaped(each.about));
    }
  }
  const std::string notes = paragraphs(command.footer.substr(command.footer.find_first_not_of('\n') == std::string::npos
                                                                 ? command.footer.size()
                                                                 : command.footer.find_first_not_of('\n')));
  if (!notes.empty()) text += (notes.starts_with(".SH") ? "" : ".SH NOTES\n") + notes;
  if (!is_program) text += ".SH SEE ALSO\n\\fBbackplane\\fR(1)\n";
  return text;
}

}  // namespace backplane::tool
