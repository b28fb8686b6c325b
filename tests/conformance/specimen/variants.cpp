// SPDX-License-Identifier: Apache-2.0
//
// Correct backends with fewer abilities than the specimen. They test the cases that skip parts for such backends, and
// those that are skipped for them.
#include "mutants_init.hpp"
#include "specimen.hpp"

namespace backplane::specimen {
namespace {

constexpr uint32_t kTagBits = 16;

// The world that this process belongs to, and how many groups without a parent it has now.
std::mutex world_mutex;
int32_t world_rank = -1;
int32_t world_ranks = -1;
int32_t worlds = 0;

thread_local bool has_parent = false;

int32_t notes_parent(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  has_parent = init->parent != nullptr;
  return plain_init(self, init, agent, err);
}

// Imitates a library with one world, a start that cannot be interrupted, and tags of 16 bits.
class Narrow final : public Specimen {
 public:
  Narrow() { matcher_.set_internal(uint64_t{1} << (kTagBits - 1)); }

  void start(const sdk::Context& context) override {
    if (!has_parent) enter_world(context);
    sdk::Context patient = context;
    patient.timeout_ns = BP_NO_TIMEOUT;
    Specimen::start(patient);
  }
  void close() noexcept override {
    Specimen::close();
    if (!is_world_) return;
    const std::lock_guard lock(world_mutex);
    --worlds;
  }

 private:
  void enter_world(const sdk::Context& context) {
    const std::lock_guard lock(world_mutex);
    if (world_rank < 0) world_rank = context.rank, world_ranks = context.world_size;
    if (worlds > 0 || context.rank != world_rank || context.world_size != world_ranks) {
      throw sdk::Failure(BP_INVALID, "this process is rank " + std::to_string(world_rank) + " of a world of " +
                                         std::to_string(world_ranks) + " and of no other one");
    }
    ++worlds;
    is_world_ = true;
  }
  void check_abort() const override {}
  OperationPtr make_operation(const bp_op& op) override {
    if (op.tag >> kTagBits != 0 && op.tag != BP_ANY_TAG) {
      throw sdk::Failure(BP_INVALID, "the tag " + std::to_string(op.tag) + " has more than 16 bits");
    }
    return Specimen::make_operation(op);
  }

  bool is_world_ = false;
};

void narrow(bp_backend& backend) {
  backend.flags |= BP_BACKEND_ONE_WORLD | BP_BACKEND_BLOCKING_INIT;
  backend.tag_bits = kTagBits;
  starting<notes_parent>(backend);
}

int32_t refuses_groups(const bp_backend*, const bp_init*, bp_agent*, bp_error* err) {
  return bp_error_set(err, BP_INVALID, 0, -1, "the backend makes RPC agents, not process groups");
}

void rpc_only(bp_backend& backend) {
  backend.kinds = BP_KIND_RPC;
  backend.flags = 0;
  backend.capabilities = nullptr;
  backend.capability_count = 0;
  starting<refuses_groups>(backend);
}

}  // namespace

std::vector<Mutant> variants() {
  return {{"narrow", "none: it has one world, 16 tag bits and an init that blocks", made<Narrow>, narrow},
          {.name = "rpc-only", .bug = "none: it makes RPC agents, not process groups", .patch_backend = rpc_only}};
}

}  // namespace backplane::specimen
