// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tools/command.hpp"

namespace backplane::test {

// The ranks of a job over the stub of MPI (stub/stub.hpp), as processes "PROGRAM SCENARIO FILE". They meet in the file.
class StubJob {
 public:
  using Variables = std::map<std::string, std::string>;

  explicit StubJob(std::string program) : program_(std::move(program)) {}

  // Starts a rank. `variables` are added to those of the stub, or replace them.
  void start(int rank, int size, const std::string& scenario, const Variables& variables = {}) {
    Variables all = variables;
    all.insert({{"PMI_RANK", std::to_string(rank)},
                {"PMI_SIZE", std::to_string(size)},
                {"BACKPLANE_STUB_DIRECTORY", world_.path()},
                {"BACKPLANE_MPI_LIBRARY", BACKPLANE_TEST_STUB}});
    ranks_.push_back(std::make_unique<Command>(std::vector<std::string>{scenario, place_.file("meeting")},
                                               Setting{all, {}, program_}));
  }
  std::vector<Outcome> wait() {
    std::vector<Outcome> outcomes;
    for (const auto& rank : ranks_) outcomes.push_back(rank->wait());
    return outcomes;
  }
  // Runs all ranks of a job, which are to pass.
  void expect_ended(int size, const std::string& scenario) {
    for (int rank = 0; rank < size; ++rank) start(rank, size, scenario);
    for (const Outcome& outcome : wait()) {
      EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
      EXPECT_TRUE(contains(outcome.out, "passed")) << outcome.out << outcome.err;
    }
  }
  // The same, and they are to leave no message of MPI.
  void expect_passed(int size, const std::string& scenario) {
    expect_ended(size, scenario);
    EXPECT_TRUE(fs::is_empty(world_.path()));
  }
  const fs::path& world() const { return world_.path(); }

 private:
  const std::string program_;
  const ScopedDirectory place_;
  const ScopedDirectory world_;
  std::vector<std::unique_ptr<Command>> ranks_;
};

}  // namespace backplane::test
