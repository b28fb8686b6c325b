// SPDX-License-Identifier: Apache-2.0
//
// The parts of each group of cases. The order within a group is that of `all_cases` (all.cpp).
#pragma once

#include <vector>

#include "../case.hpp"

namespace backplane::conformance {

namespace load {
std::vector<Case> file_cases();      // the file's structure
std::vector<Case> contract_cases();  // the descriptor and its note
std::vector<Case> manners_cases();   // side effects of loading and starting on the process
std::vector<Case> structs_cases();   // cores of other minor versions
}  // namespace load

namespace options {
std::vector<Case> schema_cases();  // what the backend declares
std::vector<Case> values_cases();  // the effect of values
}  // namespace options

namespace init {
std::vector<Case> world_cases();    // groups that start as expected
std::vector<Case> trouble_cases();  // invalid, late or missing ranks
std::vector<Case> step_cases();     // ranks that stand still during init
std::vector<Case> session_cases();  // groups after, beside and before other groups
}  // namespace init

std::vector<Case> p2p_contents_cases();   // messages arrive unchanged, and no other memory is written
std::vector<Case> p2p_lengths_cases();    // messages longer and shorter than their recv
std::vector<Case> p2p_matching_cases();   // which message goes to which recv
std::vector<Case> p2p_tags_cases();       // the tags that a recv reports and takes
std::vector<Case> p2p_announced_cases();  // a message that no memory could hold
std::vector<Case> p2p_flow_cases();       // blocking, buffering and memory
std::vector<Case> p2p_many_cases();       // many messages, many ranks

std::vector<Case> collectives_operation_cases();  // each operation by itself
std::vector<Case> collectives_buffer_cases();     // alignment, overlap and size of buffers
std::vector<Case> collectives_value_cases();      // special values of elements
std::vector<Case> collectives_size_cases();       // large buffers and larger worlds
std::vector<Case> collectives_mismatch_cases();   // ranks that do not agree

std::vector<Case> order_sequence_cases();     // one after the other
std::vector<Case> order_outstanding_cases();  // many at the same time

std::vector<Case> async_cases();            // work_test and work_wait
std::vector<Case> async_answer_cases();     // the status of a terminal operation, asked again
std::vector<Case> async_end_cases();        // cancel, release, destroy
std::vector<Case> async_notify_cases();     // notices of the end
std::vector<Case> async_interrupt_cases();  // interruptions of operations that block in submit

std::vector<Case> groups_cases();        // subgroups
std::vector<Case> group_many_cases();    // many groups
std::vector<Case> group_parent_cases();  // groups that are made from a parent's agent
std::vector<Case> group_lost_cases();    // a lost rank, by its number in the group

std::vector<Case> time_cases();        // timeouts
std::vector<Case> time_clock_cases();  // the clock of a wait

std::vector<Case> abort_cases();        // abort during an operation or init
std::vector<Case> abort_after_cases();  // guarantees after an abort

std::vector<Case> death_cases();          // ranks that die or stop
std::vector<Case> death_network_cases();  // connections that break
std::vector<Case> death_report_cases();   // reports to the host
std::vector<Case> death_leave_cases();    // messages of a rank that has left

std::vector<Case> hygiene_rounds_cases();  // resources after many rounds
std::vector<Case> hygiene_cases();         // output, finalize, traces of killed ranks
std::vector<Case> hygiene_scarce_cases();  // scarce resources

std::vector<Case> hostile_cases();        // attacks on a group
std::vector<Case> hostile_idle_cases();   // idle connections while ranks start
std::vector<Case> hostile_start_cases();  // attacks while ranks start

std::vector<Case> errors_cases();        // statuses and texts
std::vector<Case> error_memory_cases();  // the memory of a bp_error

std::vector<Case> process_cases();         // threads and descriptors
std::vector<Case> process_fork_cases();    // forked children
std::vector<Case> process_signal_cases();  // signals and other state of the process

std::vector<Case> determinism_cases();

std::vector<Case> memory_cases();             // allocations
std::vector<Case> memory_buffer_cases();      // operations on them
std::vector<Case> memory_registered_cases();  // registered memory

std::vector<Case> device_cases();        // the order of work in a stream
std::vector<Case> device_batch_cases();  // batches and copies

std::vector<Case> probe_cases();      // messages that are probed
std::vector<Case> probe_end_cases();  // abort and death beside probes

}  // namespace backplane::conformance
