// SPDX-License-Identifier: Apache-2.0
#include "group/services.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "interrupt.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kMinProbePauseNs = 5'000;
constexpr int64_t kMaxProbePauseNs = 500'000;

}  // namespace

bp_message* probe(Group& group, int32_t peer, uint64_t tag, Deadline deadline, bp_result* result) {
  const GroupConfig& config = group.config();
  const Agent* agent = nullptr;
  {
    const auto use = UseGuard::of_active(group.state());
    agent = &group.agents().of(BP_HOST);
    if (peer != BP_ANY_SOURCE && (peer < 0 || peer >= config.world_size)) {
      fail(BP_INVALID, "probe: peer {} is not a rank of this group of {}", peer, config.world_size);
    }
    if (tag >= UINT64_C(1) << 32 && tag != BP_ANY_TAG) fail(BP_INVALID, "probe: tag {} is not below 2^32", tag);
    if (agent->probe() == nullptr) {
      fail(BP_UNSUPPORTED, "probe: backend {} cannot probe for messages; {}", agent->id(), kMatchingHint);
    }
    if (tag == BP_ANY_TAG && !agent->matches_by(BP_BACKEND_ANY_TAG)) {
      fail(BP_UNSUPPORTED, "probe: backend {} cannot match any tag; name the tag, or {}", agent->id(), kMatchingHint);
    }
  }
  Deadline next_check = Interruptible::next_check(Deadline::never());
  for (int64_t pause_ns = kMinProbePauseNs;; pause_ns = std::min(2 * pause_ns, kMaxProbePauseNs)) {
    {
      const auto use = UseGuard::of_active(group.state());
      const bp_probe_api* const api = agent->probe();
      bp_error err;
      bp_error_init(&err);
      bp_message* message = nullptr;
      const int32_t status = api->probe(api->ctx, peer, agent->native_tag(tag), &message, result, &err);
      if (status == BP_OK && message == nullptr)
        fail(BP_INTERNAL, "a backend's probe returned BP_OK and set no message");
      if (status == BP_OK) return message;
      if (status != BP_AGAIN) throw group.failures().explained(Error(status, err.text, err.peer_rank, err.native_code));
    }
    if (deadline.passed()) {
      fail(BP_TIMEOUT, "probe on rank {} of group '{}': no message from {} with {} arrived in time", config.rank,
           config.name, peer == BP_ANY_SOURCE ? "any rank" : fmt::format("rank {}", peer),
           tag == BP_ANY_TAG ? "any tag" : fmt::format("tag {}", tag));
    }
    Interruptible::check(&next_check);
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));
  }
}

void drop(Group& group, bp_message* message) {
  const UseGuard use(group.state());
  if (group.state().destroyed()) return;  // the backend has freed the message
  const bp_probe_api* const api = group.agents().of(BP_HOST).probe();
  if (api != nullptr) api->drop(api->ctx, message);
}

const void* backend_extension(Group& group, uint32_t memory, const char* id) {
  const auto use = UseGuard::of_active(group.state());
  const Agent* const agent = memory < BP_MEMORY_COUNT ? group.agents().serving(memory) : nullptr;
  if (agent == nullptr) return nullptr;
  const bp_agent& backend = agent->backend_agent();
  return static_cast<const bp_process_group_api*>(backend.api)->extension(backend.self, id);
}

std::unique_ptr<Memory> allocate(Group& group, uint64_t bytes, uint32_t memory, int32_t device) {
  const auto use = UseGuard::of_active(group.state());
  if (memory >= BP_MEMORY_COUNT) fail(BP_INVALID, "allocate: memory kind {} does not exist", memory);
  const Agent& agent = group.agents().of(memory);
  const bp_memory_api* const table = bytes == 0 ? nullptr : agent.memory();
  if (table != nullptr) {
    try {
      return std::make_unique<Memory>(*table, bytes, memory, device);
    } catch (const Error& e) {
      if (e.status() != BP_UNSUPPORTED || memory != BP_HOST) throw;
    }
  }
  if (memory != BP_HOST)
    fail(BP_UNSUPPORTED, "backend {} cannot allocate cuda memory; allocate it with cudaMalloc", agent.id());
  return std::make_unique<Memory>(bytes);
}

std::unique_ptr<Memory> register_memory(Group& group, void* data, uint64_t bytes, uint32_t memory, int32_t device) {
  const auto use = UseGuard::of_active(group.state());
  if (memory >= BP_MEMORY_COUNT) fail(BP_INVALID, "register: memory kind {} does not exist", memory);
  if (bytes >= Memory::kMaxBytes) fail(BP_INVALID, "register: {} bytes exceed the limit of 2^48", bytes);
  const Agent& agent = group.agents().of(memory);
  return std::make_unique<Memory>(bytes == 0 ? nullptr : agent.memory(), data, bytes, memory, device);
}

}  // namespace backplane::core
