// SPDX-License-Identifier: Apache-2.0
#include "python.hpp"

#include <dlfcn.h>
#include <glob.h>
#include <sys/auxv.h>

#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <vector>

#include "backplane/base/signals.hpp"

namespace backplane::c10d {
namespace {

struct Installation {
  std::string program;
  std::string library;
};

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The first file that matches, or "".
std::string first_match(const std::string& pattern) {
  glob_t found = {};
  std::string result;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) result = found.gl_pathv[0];
  ::globfree(&found);
  return result;
}

// The shared library of a program whose name, once links are resolved, is like python3.11. Empty if there is none.
std::string library_of(const std::string& program) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(program, error);
  const std::string name = real.filename().string();
  if (error || !name.starts_with("python3.")) return "";
  const std::string prefix = real.parent_path().parent_path().string();
  for (const char* const folder : {"/lib", "/lib/*-linux-gnu", "/lib64"}) {
    std::string found = first_match(prefix + folder + "/lib" + name + ".so*");
    if (!found.empty()) return found;
  }
  return "";
}

Installation find_python(std::string python) {
  if (python.empty()) python = environment("BACKPLANE_PYTHON");
  if (!python.empty()) {
    const std::string library = library_of(python);
    if (!library.empty()) return {python, library};
    throw sdk::Failure(BP_UNSUPPORTED, "c10d: " + python + " is no Python 3 with a shared library beside it; name a " +
                                           "Python that has one (Debian: libpython3.11) by the option `python`");
  }
  std::istringstream folders(environment("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string program = folder + "/python3";
    const std::string library = library_of(program);
    if (!library.empty()) return {program, library};
  }
  throw sdk::Failure(
      BP_UNSUPPORTED,
      "c10d: no python3 in PATH has a shared library (Debian: libpython3.11); name a Python that has one "
      "by the option `python` or BACKPLANE_PYTHON");
}

// The functions of Python's stable ABI that start an interpreter.
class Library {
 public:
  explicit Library(void* handle) : handle_(handle) {}

  template <typename Function>
  Function* get(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_, name));
  }
  bool is_running() const {
    auto* const is_initialized = get<int()>("Py_IsInitialized");
    return is_initialized != nullptr && is_initialized() != 0;
  }
  bool has_interpreter() const { return get<int(const char*)>("PyRun_SimpleString") != nullptr; }

  int run(const std::string& text) const { return get<int(const char*)>("PyRun_SimpleString")(text.c_str()); }

  // Runs the text in the program's own interpreter.
  int run_beside(const std::string& text) const {
    const int state = get<int()>("PyGILState_Ensure")();
    const int result = run(text);
    get<void(int)>("PyGILState_Release")(state);
    return result;
  }

  // Starts an interpreter that handles no signals and keeps the locale, and leaves its lock to others.
  int start(const std::string& program, const std::string& text) const {
    static std::wstring name;  // Python keeps the pointer
    if (auto* const set_name = get<void(const wchar_t*)>("Py_SetProgramName"); set_name != nullptr) {
      name.assign(program.begin(), program.end());
      set_name(name.c_str());
    }
    // Python sets the locale, which a program without its own leaves at ASCII: UTF-8 mode makes Python ignore it. The
    // first import of Python's module for signals, which torch's import causes, replaces a default SIGINT handler.
    if (int* const utf8_mode = get<int>("Py_UTF8Mode"); utf8_mode != nullptr) *utf8_mode = 1;
    const std::string locale = std::setlocale(LC_ALL, nullptr);
    struct sigaction interrupt = {};
    ::sigaction(SIGINT, nullptr, &interrupt);
    get<void(int)>("Py_InitializeEx")(0);
    run("import _signal");
    ::sigaction(SIGINT, &interrupt, nullptr);
    std::setlocale(LC_ALL, locale.c_str());
    const int result = run(text);
    get<void*()>("PyEval_SaveThread")();
    return result;
  }

 private:
  void* handle_;
};

// Python text that runs bridge.py in a namespace of its own.
std::string loader(const Table& table) {
  std::ostringstream text;
  text << "exec(compile(__import__('ctypes').string_at(" << reinterpret_cast<uintptr_t>(kBridgeSource) << ", "
       << std::strlen(kBridgeSource) << ").decode(), 'backplane c10d/bridge.py', 'exec'), {'__name__': "
       << "'_backplane_c10d', 'TABLE': " << reinterpret_cast<uintptr_t>(&table) << "})";
  return text.str();
}

void load(Table& table, const std::string& python) {
  const base::SignalsBlocked blocked;  // threads that Python starts inherit it
  Library library(RTLD_DEFAULT);
  int result = 0;
  if (library.is_running()) {
    result = library.run_beside(loader(table));
  } else {
    if (::getauxval(AT_SECURE) != 0) {
      throw sdk::Failure(
          BP_UNSUPPORTED,
          "c10d: a set-uid program does not start Python, whose variables name code; run it without more "
          "rights than its caller, or embed Python in it");
    }
    const Installation found = find_python(python);
    // Extension modules take Python's symbols from the global scope.
    void* const handle = ::dlopen(found.library.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) throw sdk::Failure(BP_UNSUPPORTED, std::string("c10d: ") + ::dlerror());
    library = Library(handle);
    if (!library.has_interpreter()) {
      throw sdk::Failure(BP_UNSUPPORTED, "c10d: " + found.library + " lacks functions of Python's ABI");
    }
    result = library.is_running() ? library.run_beside(loader(table)) : library.start(found.program, loader(table));
  }
  if (result != 0 || table.open == nullptr) {
    throw sdk::Failure(BP_INTERNAL, "c10d: Python failed to load the bridge; its error is on stderr");
  }
}

}  // namespace

const Table& start_python(const std::string& python) {
  static std::mutex mutex;
  static Table table = {};  // Python's functions stay for the life of the process
  const std::lock_guard lock(mutex);
  if (table.open == nullptr) load(table, python);
  return table;
}

std::string describe_python(const std::string& python) {
  if (Library(RTLD_DEFAULT).is_running()) return "the program's own Python";
  const Installation found = find_python(python);
  return found.program + " (" + found.library + ")";
}

}  // namespace backplane::c10d
