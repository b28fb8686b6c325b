// SPDX-License-Identifier: Apache-2.0
//
// Matched probes, and what else a group hands through to its backend.
#include <algorithm>
#include <chrono>
#include <thread>

#include "group/group.hpp"
#include "group/pass.hpp"
#include "interrupt.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kShortestProbePauseNs = 5'000;
constexpr int64_t kLongestProbePauseNs = 500'000;

}  // namespace

bp_message* Group::probe(int32_t peer, uint64_t tag, Deadline deadline, bp_result* result) {
  const Agent* agent = nullptr;
  {
    const Pass pass(*this);
    agent = &agent_of(BP_HOST);
    if (peer != BP_ANY_SOURCE && (peer < 0 || peer >= config_.world_size)) {
      fail(BP_INVALID, "probe: peer {} is not a rank of this group of {}", peer, config_.world_size);
    }
    if (tag >= UINT64_C(1) << 32 && tag != BP_ANY_TAG) fail(BP_INVALID, "probe: tag {} is not below 2^32", tag);
    if (agent->probe() == nullptr) {
      fail(BP_UNSUPPORTED, "probe: backend {} cannot probe for messages; {}", agent->id(), kMatchingHint);
    }
    if (tag == BP_ANY_TAG && !agent->matches_by(BP_BACKEND_ANY_TAG)) {
      fail(BP_UNSUPPORTED, "probe: backend {} cannot match any tag; name the tag, or {}", agent->id(), kMatchingHint);
    }
  }
  Deadline look = Interruptible::next_look(Deadline::never());
  for (int64_t pause_ns = kShortestProbePauseNs;; pause_ns = std::min(2 * pause_ns, kLongestProbePauseNs)) {
    {
      const Pass pass(*this);
      const bp_probe_api* const api = agent->probe();
      bp_error err;
      bp_error_init(&err);
      bp_message* message = nullptr;
      const int32_t status = api->probe(api->ctx, peer, agent->native_tag(tag), &message, result, &err);
      if (status == BP_OK && message == nullptr) fail(BP_INTERNAL, "a backend's probe said BP_OK and gave no message");
      if (status == BP_OK) return message;
      if (status != BP_AGAIN) throw explained(Error(status, err.text, err.peer_rank, err.native_code));
    }
    if (deadline.passed()) {
      fail(BP_TIMEOUT, "probe on rank {} of group '{}': no message from {} with {} came in time", config_.rank,
           config_.name, peer == BP_ANY_SOURCE ? "any rank" : fmt::format("rank {}", peer),
           tag == BP_ANY_TAG ? "any tag" : fmt::format("tag {}", tag));
    }
    Interruptible::check(&look);
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));
  }
}

void Group::drop(bp_message* message) {
  const Presence presence(*this);
  if (state_.load() == State::kDestroyed) return;  // it went with the backend
  const bp_probe_api* const api = agent_of(BP_HOST).probe();
  if (api != nullptr) api->drop(api->ctx, message);
}

const void* Group::extension(uint32_t memory, const char* id) {
  const Pass pass(*this);
  if (memory >= BP_MEMORY_COUNT || by_memory_[memory] == nullptr) return nullptr;
  const bp_agent& bare = by_memory_[memory]->bare();
  return static_cast<const bp_process_group_api*>(bare.api)->extension(bare.self, id);
}

}  // namespace backplane::core
