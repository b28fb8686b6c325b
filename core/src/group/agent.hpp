// SPDX-License-Identifier: Apache-2.0
//
// A backend's agent as the core holds it, with the layers around it, and what it does natively.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backplane/abi/ext/calls.h"
#include "backplane/abi/ext/device.h"
#include "backplane/abi/ext/memory.h"
#include "backplane/abi/ext/notify.h"
#include "backplane/abi/ext/probe.h"
#include "deadline.hpp"
#include "group/stage.hpp"
#include "schedule/planner.hpp"

namespace backplane::core {

// A backend or a layer with its options.
struct ChosenPlugin {
  const Member* member = nullptr;
  std::shared_ptr<const BackendOptions> options;
};

// What a collective that the core completes needs beside its buffers: what to do, and memory for what is on its way.
class Workspace {
 public:
  Planner& planner() { return planner_; }
  // At least so many bytes; not cleared, and valid until the next call.
  std::byte* scratch(uint64_t size);
  // Of what trim leaves.
  uint64_t scratch_size() const { return scratch_size_; }
  // Frees what is large.
  void trim();

 private:
  Planner planner_;
  uint64_t scratch_size_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
  std::unique_ptr<std::byte[]> large_;  // instead of it, which the next collective may need
};

// What to do where a backend cannot match messages as the program wants.
inline constexpr const char* kMatchingHint = "wrap it in the layer matching (BACKPLANE_LAYERS=matching)";

// Whose flags and tag_bits say how messages are matched: the outermost layer's that does so itself, else the backend's.
const bp_backend& matcher_of(const bp_backend& backend, const std::vector<ChosenPlugin>& layers);

class Agent {
 public:
  // Runs the init handlers: the backend's, then those of the layers, the first of which is the outermost. Throws
  // core::Error.
  Agent(const ChosenPlugin& backend, const std::vector<ChosenPlugin>& layers, const AgentConfig& config);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const std::string& id() const { return stages_.front()->member().id; }
  const bp_process_group_api& api() const { return *api_; }
  void* self() const { return self_; }
  // What a level above these would wrap.
  const bp_agent& outermost() const { return stages_.back()->agent(); }
  // Can it match messages by BP_BACKEND_TAGS, BP_BACKEND_ANY_SOURCE or BP_BACKEND_ANY_TAG?
  bool matches_by(uint32_t flag) const { return (matcher_.flags & flag) != 0; }

  // Does the backend itself perform this operation?
  bool native(uint32_t kind, uint32_t dtype, uint32_t reduce_op, uint32_t memory, bool reduces) const {
    const uint64_t dtypes = native_[kind][memory][reduces ? reduce_op : 0];
    return (dtypes & (kind == BP_BARRIER ? dtypes : BP_BIT(dtype))) != 0;
  }
  // Can the core build what is missing out of this backend's sends and receives of host bytes?
  bool supports_schedules() const;

  // Memory that its operations reach directly, NULL if it has none to give.
  const bp_memory_api* memory() const;
  // What it can do with its device's streams, NULL if it has none.
  const bp_device_api* device() const;
  // Notices of ends, and matched probes, NULL if it has none.
  const bp_notify_api* notify() const;
  const bp_probe_api* probe() const;
  // The backend's own agent, under the layers and without isolation.
  const bp_agent& backend_agent() const { return stages_.front()->bare_agent(); }
  const Member& member() const { return stages_.front()->member(); }
  // A tag of 64 bits as the backend has it, which may match fewer (abi/op.h, TAGS). Throws BP_UNSUPPORTED for a tag of
  // users that does not fit.
  uint64_t native_tag(uint64_t tag) const;
  // As work_wait of the table. Throws BP_CANCELLED if the program interrupts this thread; the operation goes on.
  int32_t wait(bp_work* work, Deadline deadline, bp_error* err) const;
  // The layer that wants to hear of calls, NULL if none does.
  const bp_calls_api* calls() const;

  // The agent keeps one that came back, but for what is large in it: the system's fresh pages cost more than most of
  // what is done in them. Any thread.
  std::unique_ptr<Workspace> borrow_workspace();
  void return_workspace(std::unique_ptr<Workspace> workspace);

  // Was a call into a plugin left behind? Then it may still use the buffers that it was given.
  bool hung() const;

  // Makes everything in flight and everything later fail with `why`. Any thread.
  void abort(const bp_error& why);

 private:
  void learn_capabilities(const bp_agent& agent);
  const void* extension(const char* id) const { return api_->extension(self_, id); }

  std::vector<std::unique_ptr<Stage>> stages_;  // the backend first, the outermost layer last
  const bp_process_group_api* api_ = nullptr;   // of the last
  void* self_ = nullptr;
  const bp_backend& matcher_;
  // By kind, memory and reduce operation (0 for what does not reduce): the dtypes; of a barrier anything but none.
  std::array<std::array<std::array<uint64_t, BP_REDUCE_OP_COUNT>, BP_MEMORY_COUNT>, BP_OP_COUNT> native_ = {};
  std::mutex workspace_mutex_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace backplane::core
