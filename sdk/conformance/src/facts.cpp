// SPDX-License-Identifier: Apache-2.0
#include "facts.hpp"

#include <algorithm>
#include <cstdlib>

#include "names.hpp"

namespace backplane::conformance {
namespace {

uint64_t number(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

void describe(Rank& rank) {
  rank.step("reading the descriptor");
  const bp_backend& backend = rank.backend();
  const Channel& channel = rank.run().channel;
  channel.send({Record::kFacts,
                rank.id(),
                {"backend", text_of(rank.plugin().vendor), text_of(backend.id), text_of(backend.version),
                 std::to_string(backend.flags)}});
  channel.send({Record::kFacts, rank.id(), {"kinds", std::to_string(backend.kinds), "", "", ""}});
  if (rank.plugin().backend_count == 1) channel.send({Record::kFacts, rank.id(), {"single", "", "", "", ""}});
  for (uint32_t i = 0; i < backend.capability_count; ++i) {
    const bp_capability& capability = *backend.capabilities[i];
    channel.send({Record::kFacts,
                  rank.id(),
                  {"capability", std::to_string(capability.op), std::to_string(capability.dtypes),
                   std::to_string(capability.reduce_ops), std::to_string(capability.memory)}});
  }
  if (backend.probe == nullptr) return;
  rank.step("in probe");
  Host host(rank.world(), "probe", [](uint32_t, const char*) {});
  Outcome outcome;
  outcome.status = backend.probe(&backend, host.table(), &outcome.error);
  if (outcome.status != BP_UNSUPPORTED) return;
  channel.send({Record::kFacts, rank.id(), {"refusal", outcome.text(), "", "", ""}});
}

struct Flag {
  uint32_t bit;
  const char* reason;
};

}  // namespace

uint64_t Facts::ops() const {
  uint64_t mask = 0;
  for (const auto& [op, capability] : capabilities) mask |= op < 64 ? BP_BIT(op) : 0;
  return mask;
}

void Facts::add(const std::vector<std::string>& fields) {
  if (fields.size() != 5) return;
  if (fields[0] == "backend") {
    known = true;
    vendor = fields[1];
    id = fields[2];
    version = fields[3];
    flags = static_cast<uint32_t>(number(fields[4]));
  } else if (fields[0] == "kinds") {
    kinds = static_cast<uint32_t>(number(fields[1]));
  } else if (fields[0] == "single") {
    is_single = true;
  } else if (fields[0] == "refusal") {
    refusal = fields[1];
  } else {
    const auto op = static_cast<uint32_t>(number(fields[1]));
    capabilities[op] = {sizeof(bp_capability), op, number(fields[2]), number(fields[3]), number(fields[4])};
  }
}

const Case& describing() {
  static const Case which =
      Case("describe", "the descriptor can be read", describe, {.groups = false, .ops = 0}, {.deadline = 10 * kSecond})
          .in("load");
  return which;
}

std::string inapplicable(const Case& which, const Facts& facts, int32_t ranks, bool from_file) {
  if (which.needs.file && !from_file) return "the plugin is linked in, there is no file to look at";
  if (!which.loads) return ranks < which.needs.ranks ? fmt::format("needs {} ranks", which.needs.ranks) : "";
  if (!facts.known) return "the plugin cannot be described";
  if (which.needs.groups && (facts.kinds & BP_KIND_PROCESS_GROUP) == 0) {
    return facts.kinds == BP_KIND_RPC ? "the backend makes RPC agents only" : "the backend makes no process groups";
  }
  if (const uint64_t missing = which.needs.ops & ~facts.ops(); missing != 0) {
    std::string names;
    for (uint32_t op = 0; op < BP_OP_COUNT; ++op) {
      if ((missing & BP_BIT(op)) != 0) names += (names.empty() ? "" : ", ") + std::string(op_name(op));
    }
    return "the backend declares no " + names;
  }
  static constexpr Flag kFlags[] = {{BP_BACKEND_TAGS, "matches no tags"},
                                    {BP_BACKEND_ANY_SOURCE, "cannot receive from any source"},
                                    {BP_BACKEND_ANY_TAG, "cannot receive any tag"},
                                    {BP_BACKEND_AUTONOMOUS, "does not get on without calls"},
                                    {BP_BACKEND_THREADS, "does not serve ranks that are threads of one process"},
                                    {BP_BACKEND_AUTHENTICATES, "does not say that it authenticates its peers"}};
  for (const Flag& flag : kFlags) {
    if ((which.needs.flags & ~facts.flags & flag.bit) != 0) return std::string("the backend ") + flag.reason;
  }
  static constexpr Flag kLimits[] = {
      {BP_BACKEND_ONE_WORLD, "belongs to one world, and the case makes others without a parent"},
      {BP_BACKEND_BLOCKING_INIT, "cannot be interrupted in init"}};
  for (const Flag& limit : kLimits) {
    if ((which.needs.without & facts.flags & limit.bit) != 0) return std::string("the backend ") + limit.reason;
  }
  if (which.needs.processes && (facts.flags & BP_BACKEND_ONE_PROCESS) != 0) {
    return "the ranks of this backend live in one process";
  }
  if (ranks < which.needs.ranks) return fmt::format("needs {} ranks", which.needs.ranks);
  const std::vector<int32_t> sizes = worlds(which, ranks);
  return sizes.empty() ? fmt::format("needs {} ranks", *std::min_element(which.worlds.begin(), which.worlds.end()))
                       : "";
}

std::vector<int32_t> worlds(const Case& which, int32_t ranks) {
  if (which.worlds.empty()) return {ranks};
  std::vector<int32_t> sizes = which.worlds;
  if (ranks == 1) std::erase_if(sizes, [](int32_t size) { return size > 1; });
  return sizes;
}

}  // namespace backplane::conformance
