// SPDX-License-Identifier: Apache-2.0
//
// Groups with layers around their backend.
#pragma once

#include <fstream>
#include <iterator>

#include "support/environment.hpp"
#include "support/groups.hpp"
#include "support/scoped_log.hpp"

namespace backplane::test {

// Runs body(group) for each rank of a group over `backend` inside `layers`, written as in BACKPLANE_LAYERS.
inline void in_layers(const std::string& layers, const std::string& backend, int world_size,
                      const std::function<void(ProcessGroup&)>& body) {
  const ScopedVariable variable("BACKPLANE_LAYERS", layers);
  const Store store = Store::inproc();
  on_ranks(world_size, [&backend, &store, world_size, &body](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options(backend, store, rank, world_size));
    body(group);
  });
}

// The error text of a group of one rank that fails to start with these layers.
inline std::string refusal(const std::string& layers, const std::string& backend = "self") {
  const ScopedVariable variable("BACKPLANE_LAYERS", layers);
  std::string text;
  EXPECT_EQ(failure_of([&backend] { ProcessGroup::create(group_options(backend, Store::inproc(), 0, 1)); }, &text),
            Status::kInvalid)
      << text;
  return text;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The number of places with `part`, of which a line has one at most.
inline int64_t lines_with(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace backplane::test
