// SPDX-License-Identifier: Apache-2.0
#include "common/files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "common/failure.hpp"
#include "common/table.hpp"

namespace backplane::tool {

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Failure(kFailed, fmt::format("cannot write {}: {}", printable(path), errno_text(errno)));
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw Failure(kFailed, fmt::format("cannot read {}: {}", printable(path), errno_text(errno)));
  return text.str();
}

base::Pipe make_pipe() {
  base::Pipe pipe = base::Pipe::open();
  if (!pipe) fail_system("cannot make a pipe");
  return pipe;
}

}  // namespace backplane::tool
