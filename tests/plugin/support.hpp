// SPDX-License-Identifier: Apache-2.0
//
// A temporary directory of plugins, and the fixtures to fill it with.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "error.hpp"
#include "plugin/search_path.hpp"
#include "support/environment.hpp"

namespace backplane::test {

namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

inline fs::path fixture(const std::string& name) { return fs::path(BACKPLANE_TEST_PLUGIN_FIXTURES) / name; }

inline Bytes read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_FALSE(text.empty()) << path;
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

class TempDirectory {
 public:
  const fs::path& path() const { return path_; }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

  // A directory in it.
  std::string directory(const std::string& name) const {
    fs::create_directories(path_ / name);
    return file(name);
  }
  // A copy of a fixture under another name; modes are those of an installed plugin.
  std::string copy(const std::string& from, const std::string& name) const {
    return write(name, read_file(fixture(from + ".so")));
  }
  std::string write(const std::string& name, const Bytes& bytes) const {
    std::ofstream(file(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    fs::permissions(file(name), fs::perms(0644));
    return file(name);
  }

 private:
  const ScopedDirectory directory_;
  const fs::path path_ = fs::canonical(directory_.path());
};

inline core::plugin::SearchPath path_of(const std::vector<std::string>& directories) {
  core::plugin::SearchPath path;
  for (const auto& directory : directories) path.directories.push_back({directory, "test"});
  return path;
}

// The error of `body`; its text is empty if `body` succeeds.
template <typename Body>
core::Error error_of(Body&& body) {
  try {
    body();
  } catch (const core::Error& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {BP_OK, ""};
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace backplane::test
