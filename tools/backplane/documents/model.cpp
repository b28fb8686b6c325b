// SPDX-License-Identifier: Apache-2.0
#include "documents/model.hpp"

#include <filesystem>
#include <memory>
#include <sstream>

#include "commands.hpp"
#include "common/files.hpp"

namespace backplane::tool {
namespace {

// The type name of an option with CLI::IsMember ends with its choices: "TEXT:{text,tap,junit,json}".
std::vector<std::string> choices_of(const std::string& type) {
  const size_t begin = type.find('{');
  const size_t end = type.rfind('}');
  std::vector<std::string> choices;
  if (begin == std::string::npos || end == std::string::npos) return choices;
  std::istringstream words(type.substr(begin + 1, end - begin - 1));
  for (std::string word; std::getline(words, word, ',');) choices.push_back(word);
  return choices;
}

Completes completes(const OptionModel& option) {
  if (!option.choices.empty()) return Completes::kChoices;
  if (option.value.starts_with("BACKEND") || option.value.starts_with("FILE|BACKEND")) return Completes::kBackends;
  if (option.value.starts_with("FILE")) return Completes::kFiles;
  if (option.value.starts_with("DIRECTORY")) return Completes::kDirectories;
  return Completes::kNothing;
}

OptionModel option_model(const CLI::Option& option) {
  OptionModel made;
  for (const std::string& name : option.get_snames()) made.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) made.names.push_back("--" + name);
  made.about = option.get_description();
  made.required = option.get_required();
  made.choices = choices_of(option.get_type_name());
  const bool is_flag = option.get_items_expected_max() == 0;
  if (!is_flag) made.value = option.get_option_text().empty() ? option.get_name(true) : option.get_option_text();
  made.repeatable =
      option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll || option.get_items_expected_max() > 1;
  made.completes = completes(made);
  return made;
}

}  // namespace

CommandModel command_model(const CLI::App& app) {
  CommandModel made{app.get_name(), app.get_description(), app.get_footer(), {}, {}};
  for (const CLI::Option* option : app.get_options({})) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? made.positionals : made.options).push_back(option_model(*option));
  }
  return made;
}

std::vector<CommandModel> command_models(const CLI::App& app) {
  std::vector<CommandModel> models;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (!command->get_group().empty()) models.push_back(command_model(*command));
  }
  return models;
}

void add_documents(CLI::App& app) {
  auto directory = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(kDocumentsCommand)->group("");
  command->add_option("directory", *directory)->required();
  command->callback([&app, directory] {
    namespace fs = std::filesystem;
    const fs::path root = *directory;
    const auto write = [&root](const std::string& path, const std::string& text) {
      fs::create_directories((root / path).parent_path());
      write_file((root / path).string(), text);
    };
    write("man/man1/backplane.1", manual_page(app, command_model(app)));
    for (const CommandModel& model : command_models(app)) {
      write("man/man1/backplane-" + model.name + ".1", manual_page(app, model));
    }
    write("bash-completion/completions/backplane", bash_completion(app));
    write("zsh/site-functions/_backplane", zsh_completion(app));
  });
}

}  // namespace backplane::tool
