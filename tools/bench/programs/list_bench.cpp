// SPDX-License-Identifier: Apache-2.0
//
// The time to list a hundred plugin files: inside the library, and by `backplane list`.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "backplane/backplane.hpp"
#include "support/environment.hpp"

namespace backplane::bench {
namespace {

constexpr int kFiles = 100;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Copies of one plugin with different ids.
void fill(const std::filesystem::path& directory) {
  const std::string original = "bench-000";
  std::string image = read_file(BACKPLANE_BENCH_PLUGIN);
  std::vector<size_t> places;
  for (size_t at = image.find(original); at != std::string::npos; at = image.find(original, at + 1)) {
    places.push_back(at);
  }
  for (int i = 0; i < kFiles; ++i) {
    std::string id = std::to_string(i);
    id = original.substr(0, original.size() - id.size()) + id;
    for (const size_t at : places) image.replace(at, id.size(), id);
    const std::filesystem::path path = directory / ("backplane_" + id + ".so");
    std::ofstream(path, std::ios::binary) << image;
    std::filesystem::permissions(path, std::filesystem::perms(0644));
  }
}

// Returns an error text unless the report lists all copies as available.
std::string objection_to(const std::string& report) {
  const nlohmann::json list = nlohmann::json::parse(report, nullptr, false);
  if (list.is_discarded()) return "the output is not JSON";
  int available = 0;
  for (const auto& backend : list["backends"]) {
    const bool copy = backend["id"].get<std::string>().starts_with("bench-");
    available += copy && backend["state"] == "available" ? 1 : 0;
  }
  return available == kFiles ? "" : std::to_string(available) + " of the copies are available";
}

void registry_list(benchmark::State& state) {
  std::string report;
  for (auto _ : state) {
    char* json = nullptr;
    detail::call(bp_registry_list, static_cast<bp_registry*>(nullptr), &json);
    report = detail::take(json);
  }
  const std::string objection = objection_to(report);
  if (!objection.empty()) state.SkipWithError(objection.c_str());
}
BENCHMARK(registry_list)->Unit(benchmark::kMillisecond)->UseRealTime();

int run_list(const std::string& out) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  std::string words[] = {BACKPLANE_BENCH_COMMAND, "list", "--json"};
  char* const arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t pid = -1;
  int status = posix_spawn(&pid, arguments[0], &files, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&files);
  if (status == 0) waitpid(pid, &status, 0);
  return status;
}

void command_list(benchmark::State& state) {
  const test::ScopedDirectory place;
  const std::string out = (place.path() / "list.json").string();
  int failed = 0;
  for (auto _ : state) failed |= run_list(out);
  const std::string objection = failed == 0 ? objection_to(read_file(out)) : "the command failed";
  if (!objection.empty()) state.SkipWithError(objection.c_str());
}
BENCHMARK(command_list)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace backplane::bench

int main(int argc, char** argv) {
  const backplane::test::ScopedDirectory place;
  backplane::bench::fill(place.path());
  const backplane::test::ScopedVariable path("BACKPLANE_PLUGIN_PATH", place.path().string());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
