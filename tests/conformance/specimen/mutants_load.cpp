// SPDX-License-Identifier: Apache-2.0
//
// Mutants of the group `load` that start. Those of files and descriptors are in ../load_mutants.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "mutants_init.hpp"

namespace backplane::specimen {
namespace {

int32_t probe_breaks(const bp_backend*, const bp_host*, bp_error* err) {
  return bp_error_set(err, BP_INTERNAL, 0, -1, "cannot tell");
}
int32_t probe_says_nothing(const bp_backend*, const bp_host*, bp_error*) { return BP_UNSUPPORTED; }
int32_t probe_keeps_a_file(const bp_backend*, const bp_host*, bp_error*) {
  return ::open("/dev/null", O_RDONLY | O_CLOEXEC) < 0 ? BP_UNSUPPORTED : BP_OK;
}
int32_t probe_prints(const bp_backend*, const bp_host*, bp_error*) {
  std::puts("specimen: looks viable");
  return BP_OK;
}
int32_t probe_sets_a_variable(const bp_backend*, const bp_host*, bp_error*) {
  ::setenv("SPECIMEN_PROBED", "1", 1);
  return BP_OK;
}
template <auto Probe>
void probing(bp_backend& backend) {
  backend.probe = Probe;
}

struct KnowsEveryExtension final : Specimen {
  const void* extension(std::string_view) override { return &sdk::detail::kProcessGroupApi; }
};

// Takes the process for its own, and another image of the file for an intruder.
struct OneImage final : Specimen {
  void start(const sdk::Context& context) override {
    const std::string mine = std::to_string(reinterpret_cast<uintptr_t>(&bp_error_set));
    const char* owner = ::getenv("SPECIMEN_OWNER");
    if (owner != nullptr && mine != owner) throw sdk::Failure(BP_RESOURCE, "somebody else has started a specimen");
    ::setenv("SPECIMEN_OWNER", mine.c_str(), 1);
    Specimen::start(context);
  }
};

struct KeepsADescriptor : Specimen {
  void close() noexcept override {
    if (world_size_ > least_) static_cast<void>(::fcntl(wake_, F_DUPFD_CLOEXEC, 3));
    Specimen::close();
  }
  int32_t least_ = 0;
};
struct KeepsADescriptorTogether final : KeepsADescriptor {
  KeepsADescriptorTogether() { least_ = 1; }
};

struct KeepsMemory final : Specimen {
  void close() noexcept override {
    constexpr size_t kSize = size_t{64} << 10;
    static void* kept = nullptr;
    if (void* memory = std::malloc(kSize)) {
      std::memset(memory, 1, kSize);
      std::memcpy(memory, &kept, sizeof kept);
      kept = memory;
    }
    Specimen::close();
  }
};

template <auto Change>
void changed_table(bp_agent& agent) {
  static const bp_process_group_api table = [] {
    bp_process_group_api changed = sdk::detail::kProcessGroupApi;
    Change(changed);
    return changed;
  }();
  agent.api = &table;
}
void without_cancel(bp_process_group_api& table) { table.work_cancel = nullptr; }
void too_short(bp_process_group_api& table) { table.struct_size = 64; }
void is_rpc(bp_agent& agent) { agent.kind = BP_KIND_RPC; }

// Imitates a plugin built with later headers that does not check BP_HAS.
int32_t reads_later_host(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const volatile char* later = reinterpret_cast<const char*>(init->host) + sizeof(bp_host);
  static_cast<void>(*later);
  return plain_init(self, init, agent, err);
}
int32_t reads_later_init(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const volatile char* later = reinterpret_cast<const char*>(init) + sizeof(bp_init);
  static_cast<void>(*later);
  return plain_init(self, init, agent, err);
}
int32_t reads_later_op(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  const volatile char* later = reinterpret_cast<const char*>(op) + sizeof(bp_op);
  static_cast<void>(*later);
  return sdk::detail::submit(self, op, work, err);
}
void op_reader(bp_process_group_api& table) { table.submit = reads_later_op; }
int32_t reads_later_scan(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  return op->kind == BP_SCAN ? reads_later_op(self, op, work, err) : sdk::detail::submit(self, op, work, err);
}
void scan_reader(bp_process_group_api& table) { table.submit = reads_later_scan; }

int32_t wants_this_minor(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (init->host->abi_minor != BP_ABI_MINOR) return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "another minor");
  return plain_init(self, init, agent, err);
}
int32_t wants_this_host(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (init->host->struct_size != sizeof(bp_host)) return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "another host table");
  return plain_init(self, init, agent, err);
}

int32_t wants_this_init(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (init->struct_size != sizeof(bp_init)) return bp_error_set(err, BP_INVALID, 0, -1, "another bp_init");
  return plain_init(self, init, agent, err);
}
int32_t wants_this_op(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  if (op->struct_size != sizeof(bp_op)) return bp_error_set(err, BP_INVALID, 0, -1, "another bp_op");
  return sdk::detail::submit(self, op, work, err);
}
void op_measurer(bp_process_group_api& table) { table.submit = wants_this_op; }
int32_t wants_this_gather(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  return op->kind == BP_GATHERV ? wants_this_op(self, op, work, err) : sdk::detail::submit(self, op, work, err);
}
void gather_measurer(bp_process_group_api& table) { table.submit = wants_this_gather; }
int32_t wipes_agent(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const uint32_t size = agent->struct_size;
  std::memset(agent, 0, size);
  agent->struct_size = size;
  return plain_init(self, init, agent, err);
}
int32_t wipes_result(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  if (op->kind == BP_RECV && op->result != nullptr) {
    const uint32_t size = op->result->struct_size;
    std::memset(op->result, 0, size);
    op->result->struct_size = size;
  }
  return sdk::detail::submit(self, op, work, err);
}
void result_wiper(bp_process_group_api& table) { table.submit = wipes_result; }

void matches_8_bits(bp_backend& backend) { backend.tag_bits = 8; }

}  // namespace

std::vector<Mutant> load_mutants() {
  return {
      {.name = "load.probe-harmless", .bug = "probe breaks", .patch_backend = probing<probe_breaks>},
      {.name = "load.probe-harmless:2", .bug = "gives no reason", .patch_backend = probing<probe_says_nothing>},
      {.name = "load.probe-harmless:3", .bug = "keeps a file open", .patch_backend = probing<probe_keeps_a_file>},
      {.name = "load.probe-harmless:4", .bug = "prints", .patch_backend = probing<probe_prints>},
      {.name = "load.probe-harmless:5", .bug = "sets a variable", .patch_backend = probing<probe_sets_a_variable>},
      {.name = "load.unknown-extension-null", .bug = "knows every extension", .make = made<KnowsEveryExtension>},
      {.name = "load.masks-in-range:20", .bug = "declares 8 tag bits", .patch_backend = matches_8_bits},
      {.name = "load.two-copies", .bug = "wants the process for itself", .make = made<OneImage>},
      {.name = "load.init-destroy-1000", .bug = "keeps a descriptor", .make = made<KeepsADescriptor>},
      {.name = "load.init-destroy-1000:2", .bug = "keeps 64 KiB", .make = made<KeepsMemory>},
      {.name = "load.init-destroy-together", .bug = "keeps a descriptor", .make = made<KeepsADescriptorTogether>},
      {.name = "load.agent-table", .bug = "has no work_cancel", .patch_agent = changed_table<without_cancel>},
      {.name = "load.agent-table:2", .bug = "its table is too short", .patch_agent = changed_table<too_short>},
      {.name = "load.agent-table:3", .bug = "is of another kind", .patch_agent = is_rpc},
      {.name = "load.host-older", .bug = "reads behind bp_host", .patch_backend = starting<reads_later_host>},
      {.name = "load.host-older:2", .bug = "reads behind bp_init", .patch_backend = starting<reads_later_init>},
      {.name = "load.host-older:3", .bug = "reads behind bp_op", .patch_agent = changed_table<op_reader>},
      {.name = "load.host-older:4",
       .bug = "reads behind the bp_op of a scan",
       .patch_agent = changed_table<scan_reader>},
      {.name = "load.host-newer", .bug = "refuses later minors", .patch_backend = starting<wants_this_minor>},
      {.name = "load.host-newer:2", .bug = "refuses longer hosts", .patch_backend = starting<wants_this_host>},
      {.name = "load.struct-long", .bug = "refuses a longer bp_init", .patch_backend = starting<wants_this_init>},
      {.name = "load.struct-long:2", .bug = "refuses a longer bp_op", .patch_agent = changed_table<op_measurer>},
      {.name = "load.struct-long:3", .bug = "wipes all of bp_agent", .patch_backend = starting<wipes_agent>},
      {.name = "load.struct-long:4", .bug = "wipes all of bp_result", .patch_agent = changed_table<result_wiper>},
      {.name = "load.struct-long:5", .bug = "refuses a longer gatherv", .patch_agent = changed_table<gather_measurer>},
  };
}

}  // namespace backplane::specimen
