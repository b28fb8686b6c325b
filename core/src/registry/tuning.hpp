// SPDX-License-Identifier: Apache-2.0
//
// What `backplane bench --tune` has measured on this host, for `auto` to choose by. share/doc/user-guide.md describes
// the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace backplane::core {

// Collectives that a backend serves beside the one that was chosen: from so many bytes of a rank's part, to fewer than
// so many.
struct Exemption {
  std::string operation;  // "all_reduce"
  uint64_t from = 0;
  uint64_t end = UINT64_MAX;
  std::string id;
};

// "all_reduce of 1 MiB and more by gloo", "broadcast below 64 KiB by zmq"; several are separated by commas.
std::string describe(const std::vector<Exemption>& exemptions);

class TuningTable {
 public:
  TuningTable() = default;  // nothing was measured
  // Throws BP_INVALID, saying what is wrong with the text.
  explicit TuningTable(const std::string& json);

  // The fastest of the backends `usable`, which are in order of preference, for groups of world_size ranks; they are
  // not empty. A later one must be 5% faster than the first, in the geometric mean over all rows in which both were
  // measured, with that number of ranks or the nearest to it. What was not measured cannot be faster than anything.
  std::string fastest(const std::vector<std::string>& usable, int32_t world_size) const;

  // Where another of the usable ones takes at most two thirds of the time of `chosen`, so that it is worth having, too:
  // in order of operations and sizes. A size counts up to the next one that was measured, the least also below it. Only
  // of collectives whose size all ranks know, barriers excepted.
  std::vector<Exemption> exemptions(const std::string& chosen, const std::vector<std::string>& usable,
                                    int32_t world_size) const;

  // "measured 1.6 us at 4 B, gloo 180": the chosen one at the smallest size of its first operation, then the others.
  // Empty if it was not measured.
  std::string evidence(const std::string& chosen, const std::vector<std::string>& usable, int32_t world_size) const;

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
// (~/.local/share if that is not set), else /etc/backplane/tuning.json. Empty if there is none. A file that is no table
// is a warning in the log and counts as none.
std::string tuning_text();

}  // namespace backplane::core
