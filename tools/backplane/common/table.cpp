// SPDX-License-Identifier: Apache-2.0
#include "common/table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace backplane::tool {

Table::Table(std::vector<std::string> header) { add(std::move(header)); }

void Table::add(std::vector<std::string> row) {
  for (auto& cell : row) cell = printable(cell);
  lines_.push_back({std::move(row), {}});
}

void Table::note(const std::string& text) { lines_.push_back({{}, printable(text)}); }

std::string Table::text(std::string_view indent) const {
  std::vector<size_t> widths;
  for (const Line& line : lines_) {
    widths.resize(std::max(widths.size(), line.cells.size()));
    for (size_t i = 0; i < line.cells.size(); ++i) widths[i] = std::max(widths[i], line.cells[i].size());
  }
  std::string result;
  for (const Line& line : lines_) {
    std::string row(indent);
    if (line.cells.empty()) row += "    " + line.note;
    for (size_t i = 0; i < line.cells.size(); ++i) row += fmt::format("{:<{}}  ", line.cells[i], widths[i]);
    row.erase(row.find_last_not_of(' ') + 1);
    result += row + "\n";
  }
  return result;
}

std::string shell_quoted(const std::string& word) {
  if (!word.empty() && word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                              "_-+=./:,@%") == std::string::npos) {
    return word;
  }
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return result;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

}  // namespace backplane::tool
