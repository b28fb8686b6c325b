// SPDX-License-Identifier: Apache-2.0
//
// Aligned columns with notes between the rows, and text that is safe for a terminal.
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

// Replaces control characters in text of unknown origin, such as file names and texts of plugins.
std::string printable(std::string_view text);
// Quoted for a shell's command line.
std::string shell_quoted(const std::string& word);

std::string join(const std::vector<std::string>& parts, std::string_view separator = ", ");

}  // namespace backplane::tool
