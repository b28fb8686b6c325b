// SPDX-License-Identifier: Apache-2.0
//
// The agent of a backend with the layers around it, and its capabilities.
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
#include "backplane/abi/ext/interrupt.h"
#include "backplane/abi/ext/memory.h"
#include "backplane/abi/ext/notify.h"
#include "backplane/abi/ext/probe.h"
#include "deadline.hpp"
#include "group/plugin_instance.hpp"
#include "interrupt.hpp"
#include "schedule/schedule_cache.hpp"

namespace backplane::core {

// A backend or a layer with its options.
struct ChosenPlugin {
  const Member* member = nullptr;
  std::shared_ptr<const BackendOptions> options;
};

// The schedule and the scratch memory of a collective that the core performs.
class Workspace {
 public:
  ScheduleCache& schedules() { return schedules_; }
  // At least `size` bytes, not cleared, valid until the next call.
  std::byte* scratch(uint64_t size);
  // Bytes of scratch memory that trim keeps.
  uint64_t scratch_size() const { return scratch_size_; }
  // Frees large memory.
  void trim();

 private:
  ScheduleCache schedules_;
  uint64_t scratch_size_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
  std::unique_ptr<std::byte[]> large_;  // separate, so that small scratch memory survives trim
};

// The remedy in errors about backends that cannot match messages as requested.
inline constexpr const char* kMatchingHint = "wrap it in the layer matching (BACKPLANE_LAYERS=matching)";

// The plugin whose flags and tag_bits describe message matching: the outermost layer that matches messages, otherwise
// the backend.
const bp_backend& matcher_of(const bp_backend& backend, const std::vector<ChosenPlugin>& layers);

class Agent {
 public:
  // Runs the init handlers of the backend and of the layers, the first of which is the outermost. Throws core::Error.
  Agent(const ChosenPlugin& backend, const std::vector<ChosenPlugin>& layers, const AgentConfig& config);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const std::string& id() const { return instances_.front()->member().id; }
  const bp_process_group_api& api() const { return *api_; }
  void* self() const { return self_; }
  // Which ranks are near each other; NULL if all are equally far.
  const Topology* topology() const { return instances_.front()->topology(); }
  // The agent of the outermost layer, for a further layer around it.
  const bp_agent& outermost() const { return instances_.back()->agent(); }
  // Whether messages can be matched by BP_BACKEND_TAGS, BP_BACKEND_ANY_SOURCE or BP_BACKEND_ANY_TAG.
  bool matches_by(uint32_t flag) const { return (matcher_.flags & flag) != 0; }

  // Whether the backend performs this operation natively.
  bool native(uint32_t kind, uint32_t dtype, uint32_t reduce_op, uint32_t memory, bool reduces) const {
    const uint64_t dtypes = native_[kind][memory][reduces ? reduce_op : 0];
    return (dtypes & (kind == BP_BARRIER ? dtypes : BP_BIT(dtype))) != 0;
  }
  // Whether the core can perform collectives over this backend's sends and receives of host memory.
  bool supports_schedules() const;

  // Extensions, NULL if the backend lacks them.
  const bp_memory_api* memory() const;
  const bp_device_api* device() const;
  const bp_notify_api* notify() const;
  const bp_probe_api* probe() const;
  // The backend's own agent, without layers and isolation.
  const bp_agent& backend_agent() const { return instances_.front()->unisolated_agent(); }
  const Member& member() const { return instances_.front()->member(); }
  // A tag of 64 bits in the bits that the backend matches (abi/op.h, TAGS). Throws BP_UNSUPPORTED for a program's tag
  // that does not fit.
  uint64_t native_tag(uint64_t tag) const;
  // The bits of an internal tag, from the lowest, that its native tag keeps beside the highest 16.
  uint32_t internal_tag_bits() const;
  // BP_OP_SYNC, or 0 if this thread must call the program's interruption hook and a submit that blocks does not do so.
  uint64_t flag_of_wait() const { return asks_program_ || !Interruptible::active() ? BP_OP_SYNC : 0; }
  // Calls work_wait. Throws BP_CANCELLED if the program interrupts this thread; the operation continues.
  int32_t wait(bp_work* work, Deadline deadline, bp_error* err) const;
  // The layer that observes calls, NULL if there is none.
  const bp_calls_api* calls() const;

  // Workspaces. The agent keeps one without its large memory, because fresh pages of the system cost more than most
  // collectives. Any thread.
  std::unique_ptr<Workspace> borrow_workspace();
  void return_workspace(std::unique_ptr<Workspace> workspace);

  // Whether a call into a plugin hung and was detached. It may still use its buffers.
  bool hung() const;

  // Makes all operations in flight and later fail with `why`. Any thread.
  void abort(const bp_error& why);

 private:
  void learn_capabilities(const bp_agent& agent);
  // Has operations that block inside submit call the interruption hook, if the backend can.
  void offer_interruptions();
  const void* extension(const char* id) const { return api_->extension(self_, id); }

  std::vector<std::unique_ptr<AgentInstance>> instances_;  // the backend first, the outermost layer last
  const bp_process_group_api* api_ = nullptr;              // of the outermost
  void* self_ = nullptr;
  const bp_backend& matcher_;
  bool asks_program_ = false;  // a submit that blocks calls the interruption hook
  // Dtypes by kind, memory and reduce operation (0 for other kinds). For a barrier, nonzero if it is native.
  std::array<std::array<std::array<uint64_t, BP_REDUCE_OP_COUNT>, BP_MEMORY_COUNT>, BP_OP_COUNT> native_ = {};
  std::mutex workspace_mutex_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace backplane::core
