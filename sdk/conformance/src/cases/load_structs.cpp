// SPDX-License-Identifier: Apache-2.0
//
// Group `load`: structs grow at their end; both sides accept structs of other minor versions.
#include "groups.hpp"
#include "load_bare.hpp"

namespace backplane::conformance::load {
namespace {

// Starts a group of this rank alone, then one of all ranks.
void drive(Rank& rank, Shape host_shape, uint32_t host_minor, Shape shape) {
  const bp_backend& backend = rank.backend();
  if (backend.probe != nullptr) {
    rank.step("in probe");
    const Host host(rank.world(), "probe", [](uint32_t, const char*) {});
    const Shaped<bp_host> table(host_shape, *host.table());
    table->abi_minor = host_minor;
    Outcome outcome;
    outcome.status = backend.probe(&backend, table.get(), &outcome.error);
    rank.require_ok(outcome, "probe");
  }
  if (!rank.has_flag(BP_BACKEND_ONE_WORLD) || rank.size() == 1) {
    BareAgent alone(rank, backend, fmt::format("alone/{}", rank.id()), 0, 1, host_shape, host_minor, shape);
    alone.send_and_receive();
    alone.close();
  }
  BareAgent together(rank, backend, "together", rank.id(), rank.size(), host_shape, host_minor, shape);
  together.send_and_receive();
  rank.step("waiting for the other ranks before the end");
  rank.barrier();
  together.close();
}

void host_older(Rank& rank) { drive(rank, Shape::kMinor0, 0, Shape::kMinor0); }
void host_newer(Rank& rank) { drive(rank, Shape::kLonger, 99, Shape::kUsual); }
void struct_long(Rank& rank) { drive(rank, Shape::kUsual, BP_ABI_MINOR, Shape::kLonger); }

// The table that init hands out.
void agent_table(Rank& rank) {
  const std::unique_ptr<Agent> agent = rank.open();
  const bp_process_group_api& api = agent->api();
  constexpr uint32_t kMinor0 = 72;
  rank.require(api.struct_size >= kMinor0, fmt::format("a bp_process_group_api of {} bytes at least", kMinor0),
               std::to_string(api.struct_size));
  const bool complete = api.submit != nullptr && api.work_test != nullptr && api.work_wait != nullptr &&
                        api.work_cancel != nullptr && api.work_release != nullptr && api.abort != nullptr &&
                        api.destroy != nullptr && api.extension != nullptr;
  rank.require(complete, "all functions of bp_process_group_api", "one of them is NULL");
  const bp_agent& raw = agent->raw();
  rank.check(raw.kind == BP_KIND_PROCESS_GROUP, "an agent of the requested kind", fmt::format("kind {}", raw.kind));
  if (raw.capabilities == nullptr) return;
  uint64_t declared = 0;
  for (uint32_t i = 0; i < rank.backend().capability_count; ++i) {
    declared |= BP_BIT(rank.backend().capabilities[i]->op % 64);
  }
  for (uint32_t i = 0; i < raw.capability_count; ++i) {
    rank.require(raw.capabilities[i] != nullptr && raw.capabilities[i]->struct_size >= 32,
                 fmt::format("a capability {} of the agent", i), "NULL or too short");
    rank.check((BP_BIT(raw.capabilities[i]->op % 64) & declared) != 0,
               "an agent that does no more than its backend declares",
               fmt::format("operation {}", raw.capabilities[i]->op));
  }
}

}  // namespace

std::vector<Case> structs_cases() {
  return {
      Case("agent-table", "the table that init returns is complete", agent_table, {.ops = 0}, {.worlds = {1}}),
      Case("host-older", "the backend works with a core of minor 0, and reads nothing behind its structs", host_older),
      Case("host-newer", "the backend works with a host table of a later minor", host_newer),
      Case("struct-long",
           "the backend works with longer structs of a later core, and writes nothing behind the fields it knows",
           struct_long),
  };
}

}  // namespace backplane::conformance::load
