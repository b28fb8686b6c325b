// SPDX-License-Identifier: Apache-2.0
//
// Text for people: aligned columns with notes between the rows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace backplane::tool {

class Table {
 public:
  explicit Table(std::vector<std::string> header);

  void add(std::vector<std::string> row);
  // A line below the row that was added last.
  void note(const std::string& text);
  // Each line begins with `indent`; the last column is as wide as it needs to be.
  std::string text(std::string_view indent = "") const;

 private:
  struct Line {
    std::vector<std::string> cells;
    std::string note;  // in place of cells
  };
  std::vector<Line> lines_;
};

// Text of unknown origin (file names, what a plugin says) without what could move a terminal's cursor.
std::string printable(std::string_view text);
// A word of a shell's command line.
std::string shell_quoted(const std::string& word);

std::string join(const std::vector<std::string>& parts, std::string_view separator = ", ");

}  // namespace backplane::tool
