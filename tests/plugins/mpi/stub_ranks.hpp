// SPDX-License-Identifier: Apache-2.0
//
// What the scenarios of mpi_stub_ranks share. Each is a rank, or one of several, over the stub of MPI.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "backplane/backplane.hpp"

namespace backplane::stub_ranks {

constexpr auto kTimeout = std::chrono::seconds(50);

inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("expected: " + what);
}

// The text of the failure, which has this status.
template <typename Call>
std::string failure_of(Status status, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.status() == status) return error.what();
    throw std::runtime_error("expected another status than that of: " + std::string(error.what()));
  }
  throw std::runtime_error("expected: a failure");
}

// A group of all processes of the stub's world, which meet in the file.
GroupOptions world_options(const std::string& file, const std::string& backend = "mpi");
// A group of this process alone.
GroupOptions alone_options(const std::string& backend = "mpi");

// The control of the stub: stub/commands.hpp.
void command(const std::string& commands);
int count(const std::string& what);
int calls(const std::string& function);
const void* memory(const std::string& function);

// Waits until the condition holds.
template <typename Condition>
void await(const Condition& condition, const std::string& what) {
  for (const auto end = std::chrono::steady_clock::now() + kTimeout; !condition();) {
    expect(std::chrono::steady_clock::now() < end, what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // between two checks
  }
}

using Scenario = void (*)(const std::string& file);
void abandoned(const std::string& file);
void direct(const std::string& file);
void direct_killed(const std::string& file);
void direct_unmatched(const std::string& file);
void errors(const std::string& file);
void forked(const std::string& file);
void groups_at_once(const std::string& file);
void hung(const std::string& file);
void late(const std::string& file);
void libraries(const std::string& file);
void own(const std::string& file);
void parts_abandoned(const std::string& file);
void parts_differ(const std::string& file);
void secure(const std::string& file);
void shrunk(const std::string& file);
void start(const std::string& file);
void steps(const std::string& file);
void stuck(const std::string& file);
void threads(const std::string& file);
void unattended(const std::string& file);

}  // namespace backplane::stub_ranks
