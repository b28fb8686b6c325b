// SPDX-License-Identifier: Apache-2.0
//
// PMI-1: how the processes of an MPI job meet through their launcher. Lines of text over a socket, "cmd=put kvsname=K
// key=A value=B", and a line in reply to each. Format: MPICH, src/pmi; described by Flux RFC 13.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace backplane::base {

// The value of the word "NAME=VALUE" of a line, empty if there is none. Values contain no spaces.
inline std::string pmi_field(std::string_view line, std::string_view name) {
  while (!line.empty()) {
    const std::string_view word = line.substr(0, line.find(' '));
    if (word.size() > name.size() && word.starts_with(name) && word[name.size()] == '=') {
      return std::string(word.substr(name.size() + 1));
    }
    line.remove_prefix(std::min(word.size() + 1, line.size()));
  }
  return {};
}

}  // namespace backplane::base
