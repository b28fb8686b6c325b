// SPDX-License-Identifier: Apache-2.0
//
// "mpi_stub_ranks SCENARIO FILE": prints "passed", or what failed.
#include "stub_ranks.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>

namespace backplane::stub_ranks {
namespace {

template <typename Function>
Function control(const char* name) {
  void* const library = ::dlopen(std::getenv("BACKPLANE_MPI_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  expect(library != nullptr, "the stub, which BACKPLANE_MPI_LIBRARY names");
  const auto function = reinterpret_cast<Function>(::dlsym(library, name));
  expect(function != nullptr, name);
  return function;
}

// Runs after the plugin's exit handler.
void report_finalize() {
  void* const library = ::dlopen("libmpi_abi.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return;
  const auto calls = reinterpret_cast<int (*)(const char*)>(::dlsym(library, "backplane_stub_calls"));
  std::printf("MPI_Finalize was called %d times\n", calls("MPI_Finalize"));
}

int number(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? -1 : std::atoi(text);
}

}  // namespace

GroupOptions world_options(const std::string& file, const std::string& backend) {
  GroupOptions options;
  options.backend = backend;
  options.store = Store::file(file);
  options.world_size = number("PMI_SIZE");
  options.rank = number("PMI_RANK");
  options.timeout = kTimeout;
  return options;
}

GroupOptions alone_options(const std::string& backend) {
  GroupOptions options;
  options.backend = backend;
  options.store = Store::inproc();
  options.world_size = 1;
  options.rank = 0;
  options.timeout = kTimeout;
  return options;
}

void command(const std::string& commands) {
  control<void (*)(const char*)>("backplane_stub_command")(commands.c_str());
}
int count(const std::string& what) { return control<int (*)(const char*)>("backplane_stub_count")(what.c_str()); }
int calls(const std::string& function) {
  return control<int (*)(const char*)>("backplane_stub_calls")(function.c_str());
}
const void* memory(const std::string& function) {
  return control<const void* (*)(const char*)>("backplane_stub_memory")(function.c_str());
}

}  // namespace backplane::stub_ranks

int main(int argc, char** argv) {
  using namespace backplane::stub_ranks;
  const std::map<std::string, Scenario> scenarios = {{"abandoned", abandoned},
                                                     {"direct", direct},
                                                     {"direct-killed", direct_killed},
                                                     {"direct-unmatched", direct_unmatched},
                                                     {"errors", errors},
                                                     {"forked", forked},
                                                     {"groups-at-once", groups_at_once},
                                                     {"hung", hung},
                                                     {"late", late},
                                                     {"libraries", libraries},
                                                     {"own", own},
                                                     {"parts-abandoned", parts_abandoned},
                                                     {"parts-differ", parts_differ},
                                                     {"secure", secure},
                                                     {"shrunk", shrunk},
                                                     {"start", start},
                                                     {"steps", steps},
                                                     {"stuck", stuck},
                                                     {"threads", threads},
                                                     {"unattended", unattended}};
  const auto scenario = scenarios.find(argc == 3 ? argv[1] : "");
  if (scenario == scenarios.end()) return 2;
  std::atexit(report_finalize);
  try {
    scenario->second(argv[2]);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("passed\n");
  return 0;
}
