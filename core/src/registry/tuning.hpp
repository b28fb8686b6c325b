// SPDX-License-Identifier: Apache-2.0
//
// The measurements of `backplane bench --tune` on this host, which `auto` uses. share/doc/user-guide.md describes
// the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace backplane::core {

// A collective that another backend than the chosen one serves, for sizes from `from` to below `end` (bytes of a rank's
// part).
struct BackendOverride {
  std::string operation;  // "all_reduce"
  uint64_t from = 0;
  uint64_t end = UINT64_MAX;
  std::string id;
};

// "all_reduce of 1 MiB and more by gloo", "broadcast below 64 KiB by zmq"; several are separated by commas.
std::string describe(const std::vector<BackendOverride>& overrides);

class TuningTable {
 public:
  TuningTable() = default;  // empty
  // BP_INVALID with the fault of the text.
  explicit TuningTable(const std::string& json);

  // The fastest of the backends `usable`, which are in order of preference, for groups of world_size ranks; they are
  // not empty. A later one must be 5% faster than the first, in the geometric mean over all rows in which both were
  // measured, with that number of ranks or the nearest one. A backend without measurements is never faster.
  std::string fastest(const std::vector<std::string>& usable, int32_t world_size) const;

  // The sizes at which another usable backend takes at most two thirds of the time of `chosen`, in order of operations
  // and sizes. A measurement holds up to the next measured size, that of the smallest size also below it. Covers only
  // collectives whose size all ranks know, except barriers.
  std::vector<BackendOverride> overrides(const std::string& chosen, const std::vector<std::string>& usable,
                                         int32_t world_size) const;

  // "measured 1.6 us at 4 B, gloo 180": the chosen one at the smallest size of its first operation, then the others.
  // Empty if it was not measured.
  std::string measurements(const std::string& chosen, const std::vector<std::string>& usable, int32_t world_size) const;

 private:
  struct Row {
    int32_t ranks;
    std::string operation;
    uint64_t bytes;
    std::map<std::string, double> us;  // by backend
  };
  std::vector<const Row*> rows_for(int32_t world_size) const;
  static std::string faster(const std::string& chosen, const std::vector<std::string>& usable, const Row& row);

  std::vector<Row> rows_;
};

// The text of this host's table: the file BACKPLANE_TUNING_FILE, else $XDG_DATA_HOME/backplane/tuning-HOST.json
// (~/.local/share if that is not set), else /etc/backplane/tuning.json. Empty if there is none. A malformed file
// is logged as a warning and ignored.
std::string tuning_text();

}  // namespace backplane::core
