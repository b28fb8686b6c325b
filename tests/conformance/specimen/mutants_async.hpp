// SPDX-License-Identifier: Apache-2.0
//
// For mutants of the table of abi/process_group.h: some functions replaced by wrong ones, around the right ones.
#pragma once

#include <map>
#include <mutex>
#include <set>

#include "specimen.hpp"

namespace backplane::specimen {

using Table = bp_process_group_api;

// The specimen's own, right table.
inline constexpr const Table& kPlain = sdk::detail::kProcessGroupApi;

// For Mutant::patch_agent: a table in which one, two or three functions are replaced.
template <auto Member, auto Function>
void replaced(bp_agent& agent) {
  static const Table table = [] {
    Table changed = kPlain;
    changed.*Member = Function;
    return changed;
  }();
  agent.api = &table;
}
template <auto Member1, auto Function1, auto Member2, auto Function2>
void replaced(bp_agent& agent) {
  static const Table table = [] {
    Table changed = kPlain;
    changed.*Member1 = Function1;
    changed.*Member2 = Function2;
    return changed;
  }();
  agent.api = &table;
}
template <auto Member1, auto Function1, auto Member2, auto Function2, auto Member3, auto Function3>
void replaced(bp_agent& agent) {
  static const Table table = [] {
    Table changed = kPlain;
    changed.*Member1 = Function1;
    changed.*Member2 = Function2;
    changed.*Member3 = Function3;
    return changed;
  }();
  agent.api = &table;
}

// mutants_async_interrupt.cpp
std::vector<Mutant> async_interrupt_mutants();

constexpr bool has_failed(int32_t status) { return status != BP_OK && status != BP_AGAIN; }

// A receive given up for a reason that `eats` selects also drops the next message for it.
class DropsMessages : public Specimen {
 protected:
  virtual bool eats(const sdk::Failure& why) const = 0;

  void give_up(const OperationPtr& operation, const sdk::Failure& why) override {
    if (!operation->done && !operation->sends && eats(why)) holes_.push_back({operation->peer, operation->tag});
    Specimen::give_up(operation, why);
  }
  void arrive(Arrival arrival) override {
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (arrival.channel != kMessages || arrival.tag != hole->tag) continue;
      if (hole->peer != BP_ANY_SOURCE && hole->peer != arrival.source) continue;
      holes_.erase(hole);
      return;
    }
    Specimen::arrive(std::move(arrival));
  }

 private:
  struct Hole {
    int32_t peer;
    uint64_t tag;
  };
  std::list<Hole> holes_;
};

}  // namespace backplane::specimen
