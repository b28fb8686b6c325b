// SPDX-License-Identifier: Apache-2.0
#include "registry/tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <system_error>

#include "backplane/abi/host.h"
#include "backplane/base/host.hpp"
#include "environment.hpp"
#include "error.hpp"
#include "log.hpp"

namespace backplane::core {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "backplane-tuning/1";
constexpr double kClearlyFaster = 0.95;
constexpr double kMaxTimeRatio = 2.0 / 3;  // a second backend costs threads and connections
// Collectives in which each rank knows the sizes of the others.
constexpr std::array<std::string_view, 8> kTunedCollectives = {
    "all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"};
constexpr uintmax_t kLongest = uintmax_t{1} << 20;  // bytes of a table

fs::path own_table() {
  const fs::path data = trusted_variable("XDG_DATA_HOME").value_or("");
  const fs::path home = trusted_variable("HOME").value_or("");
  const fs::path base = data.is_absolute() ? data : home.is_absolute() ? home / ".local/share" : fs::path();
  return base.empty() ? base : base / "backplane" / fmt::format("tuning-{}.json", base::host_name());
}

fs::path find_table() {
  if (const auto given = trusted_variable("BACKPLANE_TUNING_FILE")) return *given;
  const fs::path own = own_table();
  std::error_code ignored;
  return !own.empty() && fs::exists(own, ignored) ? own : fs::path("/etc/backplane/tuning.json");
}

std::string microseconds(double us) { return us < 10 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us); }

std::string size_text(uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; unit + 1 < kUnits.size() && bytes >= 1024 && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

}  // namespace

TuningTable::TuningTable(const std::string& json) {
  try {
    const auto table = nlohmann::json::parse(json);
    if (table.at("format") != kFormat) fail(BP_INVALID, "its format is not {}", kFormat);
    for (const auto& each : table.at("measured")) {
      Row row{each.at("ranks"), each.at("operation"), each.at("bytes"), each.at("us")};
      const bool sound = row.ranks > 0 && std::all_of(row.us.begin(), row.us.end(), [](const auto& one) {
                           return std::isfinite(one.second) && one.second > 0;
                         });
      if (!sound) fail(BP_INVALID, "ranks and times must be positive");
      rows_.push_back(std::move(row));
    }
  } catch (const nlohmann::json::exception& e) {
    fail(BP_INVALID, "{}", e.what());
  }
}

std::vector<const TuningTable::Row*> TuningTable::rows_for(int32_t world_size) const {
  const auto distance = [world_size](const Row& row) { return std::abs(int64_t{row.ranks} - world_size); };
  std::vector<const Row*> nearest;
  for (const Row& row : rows_) {
    if (!nearest.empty() && distance(row) < distance(*nearest[0])) nearest.clear();
    if (nearest.empty() || row.ranks == nearest[0]->ranks) nearest.push_back(&row);
  }
  return nearest;
}

std::string TuningTable::fastest(const std::vector<std::string>& usable, int32_t world_size) const {
  const std::vector<const Row*> rows = rows_for(world_size);
  std::string best = usable.front();
  double best_ratio = kClearlyFaster;
  for (const std::string& id : usable) {
    double logarithms = 0;
    int count = 0;
    for (const Row* row : rows) {
      const auto mine = row->us.find(id);
      const auto first = row->us.find(usable.front());
      if (mine == row->us.end() || first == row->us.end()) continue;
      logarithms += std::log(mine->second / first->second);
      ++count;
    }
    const double ratio = count == 0 ? 1 : std::exp(logarithms / count);
    if (ratio >= best_ratio) continue;
    best = id;
    best_ratio = ratio;
  }
  return best;
}

std::vector<BackendOverride> TuningTable::overrides(const std::string& chosen, const std::vector<std::string>& usable,
                                                    int32_t world_size) const {
  std::vector<BackendOverride> found;
  for (const std::string_view operation : kTunedCollectives) {
    std::map<uint64_t, const Row*> sizes;
    for (const Row* row : rows_for(world_size)) {
      if (row->operation == operation) sizes.emplace(row->bytes, row);
    }
    for (auto size = sizes.begin(); size != sizes.end(); ++size) {
      const std::string id = faster(chosen, usable, *size->second);
      if (id.empty()) continue;
      const auto next = std::next(size);
      const BackendOverride here{std::string(operation), size == sizes.begin() ? 0 : size->first,
                                 next == sizes.end() ? UINT64_MAX : next->first, id};
      const bool continues = !found.empty() && found.back().operation == operation && found.back().id == id &&
                             found.back().end == here.from;
      if (continues) {
        found.back().end = here.end;
      } else {
        found.push_back(here);
      }
    }
  }
  return found;
}

// The fastest backend that is worth starting beside `chosen`; empty: none.
std::string TuningTable::faster(const std::string& chosen, const std::vector<std::string>& usable, const Row& row) {
  const auto own = row.us.find(chosen);
  if (own == row.us.end()) return {};
  std::string best;
  double best_us = own->second * kMaxTimeRatio;
  for (const std::string& id : usable) {
    const auto other = row.us.find(id);
    if (other == row.us.end() || other->second > best_us) continue;
    best = id;
    best_us = other->second;
  }
  return best;
}

std::string describe(const std::vector<BackendOverride>& overrides) {
  std::string text;
  for (const BackendOverride& each : overrides) {
    std::string sizes = "of all sizes";
    if (each.from > 0 && each.end < UINT64_MAX) {
      sizes = fmt::format("from {} to below {}", size_text(each.from), size_text(each.end));
    } else if (each.from > 0) {
      sizes = fmt::format("of {} and more", size_text(each.from));
    } else if (each.end < UINT64_MAX) {
      sizes = fmt::format("below {}", size_text(each.end));
    }
    text += fmt::format("{}{} {} by {}", text.empty() ? "" : ", ", each.operation, sizes, each.id);
  }
  return text;
}

std::string TuningTable::measurements(const std::string& chosen, const std::vector<std::string>& usable,
                                      int32_t world_size) const {
  const Row* shown = nullptr;
  for (const Row* row : rows_for(world_size)) {
    if (row->us.count(chosen) == 0) continue;
    if (shown == nullptr || (row->operation == shown->operation && row->bytes < shown->bytes)) shown = row;
  }
  if (shown == nullptr) return {};
  const std::string ranks = shown->ranks == world_size ? "" : fmt::format(" with {} ranks", shown->ranks);
  std::string text =
      fmt::format("measured{} {} us at {}", ranks, microseconds(shown->us.at(chosen)), size_text(shown->bytes));
  for (const std::string& id : usable) {
    const auto other = shown->us.find(id);
    if (id != chosen && other != shown->us.end()) text += fmt::format(", {} {}", id, microseconds(other->second));
  }
  return text;
}

std::string tuning_text() {
  const fs::path path = find_table();
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error && !trusted_variable("BACKPLANE_TUNING_FILE")) return {};
  try {
    if (error) fail(BP_INVALID, "{}", error.message());
    if (size > kLongest) fail(BP_INVALID, "it is longer than {} bytes", kLongest);
    errno = 0;
    const std::ifstream file(path);
    if (!file) fail(BP_INVALID, "it cannot be opened ({})", std::strerror(errno));
    std::ostringstream text;
    text << file.rdbuf();
    const TuningTable checked(text.str());
    return text.str();
  } catch (const Error& e) {
    log(BP_LOG_WARN, "auto ignores the tuning table {}: {}; recreate it with `backplane bench --tune`", path.string(),
        e.what());
    return {};
  }
}

}  // namespace backplane::core
