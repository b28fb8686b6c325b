// SPDX-License-Identifier: Apache-2.0
#include "groups.hpp"

namespace backplane::conformance {
namespace {

struct Group {
  const char* name;
  std::vector<std::vector<Case> (*)()> parts;
};

// In the order in which they run.
std::vector<Group> all_groups() {
  return {
      {"load", {load::file_cases, load::contract_cases, load::manners_cases, load::structs_cases}},
      {"options", {options::schema_cases, options::values_cases}},
      {"init", {init::world_cases, init::trouble_cases, init::step_cases, init::session_cases}},
      {"p2p",
       {p2p_contents_cases, p2p_lengths_cases, p2p_matching_cases, p2p_tags_cases, p2p_announced_cases, p2p_flow_cases,
        p2p_many_cases}},
      {"collectives",
       {collectives_operation_cases, collectives_buffer_cases, collectives_value_cases, collectives_size_cases,
        collectives_mismatch_cases}},
      {"order", {order_sequence_cases, order_outstanding_cases}},
      {"async", {async_cases, async_answer_cases, async_end_cases, async_notify_cases, async_interrupt_cases}},
      {"groups", {groups_cases, group_many_cases, group_parent_cases, group_lost_cases}},
      {"time", {time_cases, time_clock_cases}},
      {"abort", {abort_cases, abort_after_cases}},
      {"death", {death_cases, death_network_cases, death_report_cases, death_leave_cases}},
      {"hygiene", {hygiene_rounds_cases, hygiene_cases, hygiene_scarce_cases}},
      {"hostile", {hostile_cases, hostile_idle_cases, hostile_start_cases}},
      {"errors", {errors_cases, error_memory_cases}},
      {"process", {process_cases, process_fork_cases, process_signal_cases}},
      {"determinism", {determinism_cases}},
      {"memory", {memory_cases, memory_buffer_cases, memory_registered_cases}},
      {"device", {device_cases, device_batch_cases}},
      {"probe", {probe_cases, probe_end_cases}},
  };
}

}  // namespace

const std::vector<Case>& all_cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> result;
    for (const Group& group : all_groups()) {
      for (const auto& part : group.parts) {
        for (const Case& one : part()) result.push_back(one.in(group.name));
      }
    }
    return result;
  }();
  return all;
}

}  // namespace backplane::conformance
