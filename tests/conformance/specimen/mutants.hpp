// SPDX-License-Identifier: Apache-2.0
//
// A mutant is the specimen with one bug. It is named after the case that must catch it ("p2p.tag-match", further ones
// "p2p.tag-match:2") and chosen by the environment variable SPECIMEN_MUTANT when the plugin is loaded.
//
// The bug itself is written in one of three ways:
//   - `make`: a class derived from Specimen that overrides one of its virtual functions wrongly;
//   - `patch_backend`, `patch_agent`: changes the descriptor before it is read, or the agent that init filled in;
//   - a switch where the bug belongs: `if (mutant("p2p.tag-match")) ...`; then the entry has a name and nothing else.
// Each group lists its mutants in mutants_<group>.cpp.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "backplane/sdk/sdk.hpp"

namespace backplane::specimen {

class Specimen;

struct Mutant {
  const char* name;
  const char* bug;  // what is wrong with it, in a few words
  std::unique_ptr<Specimen> (*make)() = nullptr;
  void (*patch_backend)(bp_backend& backend) = nullptr;
  void (*patch_agent)(bp_agent& agent) = nullptr;
};

template <typename Derived>
std::unique_ptr<Specimen> made() {
  return std::make_unique<Derived>();
}

// The value of SPECIMEN_MUTANT when the plugin was loaded; empty: the correct specimen.
std::string_view chosen_mutant();
inline bool mutant(std::string_view name) { return chosen_mutant() == name; }

// The beginning of the error for an unknown name.
inline constexpr const char* kNoSuchMutant = "the specimen has no mutant of the name";

// The mutant that was chosen, or null. Throws BP_INVALID if there is none of that name.
const Mutant* find_mutant();

std::vector<Mutant> all_mutants();

// Defined in mutants_<group>.cpp; a group without that file has none.
[[gnu::weak]] std::vector<Mutant> load_mutants();
[[gnu::weak]] std::vector<Mutant> options_mutants();
[[gnu::weak]] std::vector<Mutant> init_mutants();
[[gnu::weak]] std::vector<Mutant> p2p_mutants();
[[gnu::weak]] std::vector<Mutant> collectives_mutants();
[[gnu::weak]] std::vector<Mutant> order_mutants();
[[gnu::weak]] std::vector<Mutant> async_mutants();
[[gnu::weak]] std::vector<Mutant> groups_mutants();
[[gnu::weak]] std::vector<Mutant> time_mutants();
[[gnu::weak]] std::vector<Mutant> abort_mutants();
[[gnu::weak]] std::vector<Mutant> death_mutants();
[[gnu::weak]] std::vector<Mutant> hygiene_mutants();
[[gnu::weak]] std::vector<Mutant> hostile_mutants();
[[gnu::weak]] std::vector<Mutant> errors_mutants();
[[gnu::weak]] std::vector<Mutant> process_mutants();
[[gnu::weak]] std::vector<Mutant> determinism_mutants();
[[gnu::weak]] std::vector<Mutant> memory_mutants();
[[gnu::weak]] std::vector<Mutant> device_mutants();
[[gnu::weak]] std::vector<Mutant> probe_mutants();
[[gnu::weak]] std::vector<Mutant> scale_mutants();  // of several groups
// Correct backends of other kinds, whose names are no cases.
[[gnu::weak]] std::vector<Mutant> variants();

}  // namespace backplane::specimen
