// SPDX-License-Identifier: Apache-2.0
#include "mutants.hpp"

#include <cstdlib>
#include <string>

namespace backplane::specimen {
namespace {

// Taken when the plugin is loaded: before there are threads, and unharmed by what a case does to the environment.
const char* chosen = nullptr;
[[gnu::constructor(101)]] void choose() { chosen = std::getenv("SPECIMEN_MUTANT"); }

}  // namespace

std::string_view chosen_mutant() { return chosen == nullptr ? std::string_view() : std::string_view(chosen); }

std::vector<Mutant> all_mutants() {
  std::vector<Mutant> all;
  for (const auto group :
       {load_mutants,    options_mutants, init_mutants,    p2p_mutants,         collectives_mutants, order_mutants,
        async_mutants,   groups_mutants,  time_mutants,    abort_mutants,       death_mutants,       hygiene_mutants,
        hostile_mutants, errors_mutants,  process_mutants, determinism_mutants, memory_mutants,      device_mutants,
        probe_mutants,   scale_mutants,   variants}) {
    if (group == nullptr) continue;
    const std::vector<Mutant> mutants = group();
    all.insert(all.end(), mutants.begin(), mutants.end());
  }
  return all;
}

const Mutant* find_mutant() {
  if (chosen_mutant().empty()) return nullptr;
  static const std::vector<Mutant>* const all = new std::vector<Mutant>(all_mutants());  // outlives every thread
  for (const Mutant& each : *all) {
    if (mutant(each.name)) return &each;
  }
  throw sdk::Failure(BP_INVALID, std::string(kNoSuchMutant) + " that SPECIMEN_MUTANT holds");
}

}  // namespace backplane::specimen
