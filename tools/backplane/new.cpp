// SPDX-License-Identifier: Apache-2.0
//
// backplane new: creates the project of a new backend from the templates in share/backplane/templates.
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>

#include "backplane/abi/version.h"
#include "backplane/registry.hpp"
#include "commands.hpp"
#include "common/failure.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNewFooter = R"(
The project builds against an installed Backplane, passes 'backplane check' and has a CI workflow. Templates: c++ with
sendrecv, native and wrap; c and rust with sendrecv.

Exit codes: 0; 1 if the project cannot be written; 2 wrong use.

Examples:
  backplane new acme
  backplane new acme --language c++ --from wrap --directory src/acme
  backplane new acme --language rust)";

// Ids of the plugins that Backplane brings, whether or not they are installed here.
constexpr const char* kBundled[] = {"c10d", "chaos",         "gloo", "inproc",     "matching", "mpi",     "nccl",
                                    "zmq",  "process_group", "shm",  "tensorpipe", "trace",    "validate"};

struct NewSettings {
  std::string name;
  std::string language = "c++";
  std::string origin = "sendrecv";
  std::string directory;
};

// A project is a copy of these template folders; files of later ones replace those of earlier ones.
struct Recipe {
  const char* language;
  const char* origin;
  std::array<const char*, 4> layers;  // up to the first nullptr
  const char* edit;                   // the file to edit first; "acme" stands for the name
  const char* about;
};
constexpr Recipe kRecipes[] = {
    {"c++",
     "sendrecv",
     {"common", "c++/project", "c++/sockets", "c++/sendrecv"},
     "src/transport.hpp",
     "sends and receives"},
    {"c++",
     "native",
     {"common", "c++/project", "c++/sockets", "c++/native"},
     "src/collectives.hpp",
     "has collectives of its own"},
    {"c++", "wrap", {"common", "c++/project", "c++/wrap"}, "src/acme.cpp", "wraps a library that blocks"},
    {"c", "sendrecv", {"common", "c/sendrecv"}, "src/transport.h", "sends and receives"},
    {"rust", "sendrecv", {"common", "rust/sendrecv"}, "src/transport.rs", "sends and receives"},
};

// Placeholders in the templates, in the order of search: "acme-id" is the name itself, the others are parts of
// identifiers.
struct Word {
  std::string placeholder;
  std::string replacement;
};

std::vector<Word> words_for(const std::string& name) {
  std::string lower = name;
  std::replace(lower.begin(), lower.end(), '-', '_');
  if (std::isdigit(static_cast<unsigned char>(lower.front())) != 0)
    lower.insert(0, "n");  // an identifier needs a letter
  std::string upper = lower, camel;
  bool begins = true;
  for (const char c : lower) {
    if (c != '_') camel += begins ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    begins = c == '_';
  }
  if (camel.empty() || std::isalpha(static_cast<unsigned char>(camel.front())) == 0) camel.insert(0, "N");
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return {{"acme-id", name}, {"acme", lower}, {"Acme", camel}, {"ACME", upper}};
}

// In one pass, since the name may contain a placeholder.
std::string substituted(const std::string& text, const std::vector<Word>& words) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const auto word = std::find_if(words.begin(), words.end(), [&text, at](const Word& w) {
      return text.compare(at, w.placeholder.size(), w.placeholder) == 0;
    });
    result += word == words.end() ? text.substr(at, 1) : word->replacement;
    at += word == words.end() ? 1 : word->placeholder.size();
  }
  return result;
}

void check_name(const std::string& name) {
  const bool fits = !name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (!fits) {
    throw Failure(kWrongUse, fmt::format("'{}' is not a valid id; use 1 to 32 of a-z, 0-9, '_' and '-'", name));
  }
  // CMake would parse it as an option.
  if (name.front() == '-') {
    throw Failure(kWrongUse, fmt::format("'{}' begins with '-'; begin with a letter or a digit", name));
  }
  if (name == "auto")
    throw Failure(kWrongUse, "'auto' stands for the backend that Backplane chooses; choose another id");
  const bool is_bundled = std::find(std::begin(kBundled), std::end(kBundled), name) != std::end(kBundled);
  if (is_bundled || backend_registered(name)) {
    throw Failure(kWrongUse, fmt::format("'{0}' is the id of {1} plugin: a new backplane_{0}.so would shadow it or be "
                                         "shadowed by it; choose another id",
                                         name, is_bundled ? "a bundled" : "an installed"));
  }
}

const Recipe& recipe_for(const NewSettings& settings) {
  std::string existing;
  for (const Recipe& recipe : kRecipes) {
    if (settings.language == recipe.language && settings.origin == recipe.origin) return recipe;
    existing += fmt::format("{}--language {} --from {}", existing.empty() ? "" : ", ", recipe.language, recipe.origin);
  }
  throw Failure(kWrongUse, fmt::format("no template for --language {} --from {}; the templates are: {}",
                                       settings.language, settings.origin, existing));
}

// Relative to this program, in the build tree and in an installed one.
fs::path templates() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  fs::path folder = (program.parent_path() / "../share/backplane/templates").lexically_normal();
  if (error || !fs::is_directory(folder, error)) {
    throw Failure(kFailed,
                  fmt::format("no templates in {}; a Python wheel has none: use the command of a build or of a Debian "
                              "package, or install Backplane again",
                              folder.string()));
  }
  return folder;
}

// The prefix of the installation, for CMAKE_PREFIX_PATH.
fs::path prefix_of(const fs::path& templates) { return templates.parent_path().parent_path().parent_path(); }

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) throw Failure(kFailed, fmt::format("cannot read the template {}", path.string()));
  return text;
}

void write_substituted(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) fail_system(fmt::format("cannot write {}", path.string()));
}

// Copies one folder of templates into the project.
void apply(const fs::path& layer, const fs::path& project, const std::vector<Word>& words) {
  if (!fs::is_directory(layer))
    throw Failure(kFailed, fmt::format("the template folder {} is missing; reinstall Backplane", layer.string()));
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(layer)) {
    const fs::path target = project / substituted(entry.path().lexically_relative(layer).string(), words);
    if (entry.is_directory()) {
      fs::create_directories(target);
    } else {
      fs::create_directories(target.parent_path());
      write_substituted(target, substituted(read_all(entry.path()), words));
    }
  }
}

// A temporary folder beside the target, removed unless keep() is called, so that no partial project remains.
class Draft {
 public:
  explicit Draft(const fs::path& target) : target_(target) {
    std::string name = (target.parent_path() / fmt::format(".{}.XXXXXX", target.filename().string())).string();
    if (::mkdtemp(name.data()) == nullptr)
      fail_system(fmt::format("cannot create a folder in {}", target.parent_path().string()));
    path_ = name;
    fs::permissions(path_, fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec |
                               fs::perms::others_read | fs::perms::others_exec);
  }
  ~Draft() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  const fs::path& path() const { return path_; }

  // rename(2) replaces an empty directory alone, so files that appeared meanwhile are kept.
  void keep() {
    if (::rename(path_.c_str(), target_.c_str()) != 0) {
      const int code = errno;
      if (code == ENOTEMPTY || code == EEXIST || code == ENOTDIR) refuse(target_);
      errno = code;
      fail_system(fmt::format("cannot create {}", target_.string()));
    }
    path_.clear();
  }

  [[noreturn]] static void refuse(const fs::path& target) {
    throw Failure(kWrongUse, fmt::format("{} exists and is not an empty directory; name another one with --directory",
                                         target.string()));
  }

 private:
  const fs::path target_;
  fs::path path_;
};

// True if files of this process are writable for others.
bool shares_writing() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return (mask & (S_IWGRP | S_IWOTH)) != (S_IWGRP | S_IWOTH);
}

void create(const NewSettings& settings) {
  check_name(settings.name);
  const Recipe& recipe = recipe_for(settings);
  const fs::path source = templates();
  const std::vector<Word> words = words_for(settings.name);
  fs::path target = fs::absolute(settings.directory.empty() ? settings.name : settings.directory).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // a slash at the end
  const std::string shown = settings.directory.empty() ? settings.name : target.string();
  if (fs::exists(target) && !(fs::is_directory(target) && fs::is_empty(target))) Draft::refuse(shown);
  if (!fs::is_directory(target.parent_path())) {
    throw Failure(kWrongUse,
                  fmt::format("cannot create the project: there is no directory {}", target.parent_path().string()));
  }

  Draft draft(target);
  for (const char* layer : recipe.layers) {
    if (layer != nullptr) apply(source / layer, draft.path(), words);
  }
  draft.keep();
  const std::string folder = shell_quoted(shown), build = shell_quoted(shown + "/build");
  const std::string prefix = shell_quoted(prefix_of(source).string());
  fmt::print("Created {}, the project of a backend that {}. Build and check it:\n\n", shown, recipe.about);
  if (shares_writing()) fmt::print("    umask 022  # plugins that other users can write to are refused\n");
  fmt::print("    cmake -S {0} -B {1} -DCMAKE_PREFIX_PATH={2} && cmake --build {1} && ctest --test-dir {1}\n\n", folder,
             build, prefix);
  fmt::print("Then edit {}/{}.\n", shown, substituted(recipe.edit, words));
}

}  // namespace

void add_new(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<NewSettings>();
  CLI::App* command = app.add_subcommand("new", "Create the project of a new backend, ready to build and check");
  command->add_option("name", settings->name, "Id of the backend: 1 to 32 of a-z, 0-9, '_' and '-'")
      ->required()
      ->option_text("ID");
  command->footer(kNewFooter);
  command->add_option("--language", settings->language, "c++, c or rust")->option_text("LANGUAGE (c++)");
  command
      ->add_option("--from", settings->origin,
                   "Template: sendrecv (send and receive), native (collectives) or wrap (a blocking library)")
      ->option_text("TEMPLATE (sendrecv)");
  command
      ->add_option("--directory", settings->directory,
                   "Directory of the project; must not exist or be empty. Default: ./ID")
      ->option_text("DIRECTORY");
  command->callback([settings, &exit_code] {
    try {
      create(*settings);
    } catch (const fs::filesystem_error& error) {
      throw Failure(kFailed, fmt::format("cannot write the project: {}", error.what()));
    }
    exit_code = 0;
  });
}

}  // namespace backplane::tool
