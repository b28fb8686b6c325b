// SPDX-License-Identifier: Apache-2.0
#include "bench/tuning.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "common/failure.hpp"
#include "common/files.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

using Json = nlohmann::ordered_json;

std::string table_text(const BenchReport& report) {
  Json measured = Json::array();
  const Measurement* last = nullptr;
  for (const Measurement& one : report.rows) {
    if (one.backend.find_first_of(" ?") != std::string::npos || one.backend == "auto") continue;
    const bool same_row =
        last != nullptr && last->ranks == one.ranks && last->operation == one.operation && last->bytes == one.bytes;
    if (!same_row) {
      measured.push_back(
          {{"ranks", one.ranks}, {"operation", one.operation}, {"bytes", one.bytes}, {"us", Json::object()}});
    }
    measured.back()["us"][one.backend] = std::max(one.p50_us, 1e-3);
    last = &one;
  }
  const Json whole = {
      {"format", "backplane-tuning/1"}, {"host", report.environment.host}, {"measured", std::move(measured)}};
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string tuning_file(const std::string& chosen) {
  if (!chosen.empty()) return chosen;
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (!variable("BACKPLANE_TUNING_FILE").empty()) return variable("BACKPLANE_TUNING_FILE");
  const std::string data = variable("XDG_DATA_HOME");
  const std::string home = variable("HOME");
  if (!data.starts_with('/') && !home.starts_with('/')) {
    throw Failure(kWrongUse, "--tune: HOME is not set, so there is no default file; name one by --tuning-file");
  }
  const std::string base = data.starts_with('/') ? data : fmt::format("{}/.local/share", home);
  return fmt::format("{}/backplane/tuning-{}.json", base, host_name());
}

void write_tuning(const std::string& path, const BenchReport& report) {
  namespace fs = std::filesystem;
  const std::string fresh = fmt::format("{}.new", path);
  std::error_code error;
  const mode_t mask = ::umask(022);
  fs::create_directories(fs::path(path).parent_path(), error);  // write_file reports a missing directory
  write_file(fresh, table_text(report));
  ::umask(mask);
  fs::rename(fresh, path, error);
  if (error) throw Failure(kFailed, fmt::format("cannot write {}: {}", printable(path), error.message()));
}

}  // namespace backplane::tool
