// SPDX-License-Identifier: Apache-2.0
#include "group/agent.hpp"

#include <algorithm>

#include "error.hpp"
#include "group/operation.hpp"
#include "interrupt.hpp"

namespace backplane::core {

const bp_backend& matcher_of(const bp_backend& backend, const std::vector<ChosenPlugin>& layers) {
  const auto found = std::find_if(layers.begin(), layers.end(), [](const ChosenPlugin& layer) {
    return (layer.member->backend->flags & BP_BACKEND_TAGS) != 0;
  });
  return found == layers.end() ? backend : *found->member->backend;
}

Agent::Agent(const ChosenPlugin& backend, const std::vector<ChosenPlugin>& layers, const AgentConfig& config)
    : matcher_(matcher_of(*backend.member->backend, layers)) {
  stages_.push_back(std::make_unique<Stage>(*backend.member, backend.options, config, nullptr));
  try {
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      AgentConfig its = config;
      its.inner_backend = backend.member->backend;
      its.parent = nullptr;
      its.parent_ranks.clear();
      its.parent_owner.reset();
      its.store = make_prefix_store(config.store, fmt::format("layer{}/", layer - layers.rbegin()));
      stages_.push_back(std::make_unique<Stage>(*layer->member, layer->options, its, &stages_.back()->agent()));
    }
  } catch (...) {
    while (!stages_.empty()) stages_.pop_back();
    throw;
  }
  const bp_agent& outermost = stages_.back()->agent();
  api_ = static_cast<const bp_process_group_api*>(outermost.api);
  self_ = outermost.self;
  learn_capabilities(outermost);
}

Agent::~Agent() {
  while (!stages_.empty()) {  // from the outside in
    const bool hung = stages_.back()->hung();
    stages_.pop_back();
    if (!hung) continue;
    for (auto& stage : stages_) static_cast<void>(stage.release());  // what was left behind may still call them
    stages_.clear();
  }
}

void Agent::learn_capabilities(const bp_agent& agent) {
  for (uint32_t i = 0; i < agent.capability_count; ++i) {
    const bp_capability& c = *agent.capabilities[i];
    if (c.op >= BP_OP_COUNT) continue;
    for (uint32_t memory = 0; memory < BP_MEMORY_COUNT; ++memory) {
      auto& dtypes = native_[c.op][memory];
      if (c.op == BP_BARRIER) dtypes[0] = BP_ALL_DTYPES;
      if (c.op == BP_BARRIER || (c.memory & BP_BIT(memory)) == 0) continue;
      for (uint32_t reduce_op = 0; reduce_op < BP_REDUCE_OP_COUNT; ++reduce_op) {
        const bool is_among = reduces(c.op) ? (c.reduce_ops & BP_BIT(reduce_op)) != 0 : reduce_op == 0;
        if (is_among) dtypes[reduce_op] |= c.dtypes;
      }
    }
  }
}

bool Agent::supports_schedules() const {
  return native(BP_SEND, BP_U8, 0, BP_HOST, false) && native(BP_RECV, BP_U8, 0, BP_HOST, false);
}

const bp_memory_api* Agent::memory() const {
  const auto* table = static_cast<const bp_memory_api*>(extension(BP_EXT_MEMORY));
  const bool whole = table != nullptr && BP_HAS(table, release) && table->allocate != nullptr;
  return whole && table->release != nullptr ? table : nullptr;
}

const bp_device_api* Agent::device() const {
  const auto* table = static_cast<const bp_device_api*>(extension(BP_EXT_DEVICE));
  return table != nullptr && table->wait_on_stream != nullptr ? table : nullptr;
}

const bp_notify_api* Agent::notify() const {
  const auto* table = static_cast<const bp_notify_api*>(extension(BP_EXT_NOTIFY));
  return table != nullptr && BP_HAS(table, on_end) && table->on_end != nullptr ? table : nullptr;
}

const bp_probe_api* Agent::probe() const {
  const auto* table = static_cast<const bp_probe_api*>(extension(BP_EXT_PROBE));
  const bool whole = table != nullptr && BP_HAS(table, drop) && table->probe != nullptr && table->drop != nullptr;
  return whole ? table : nullptr;
}

uint64_t Agent::native_tag(uint64_t tag) const {
  const uint32_t bits = matcher_.tag_bits;
  if (bits == 0 || bits >= 64 || tag == BP_ANY_TAG) return tag;
  const uint64_t internal = BP_BIT(bits - 1);
  if ((tag & BP_TAG_INTERNAL) == 0) {
    if (tag < internal) return tag;
    fail(BP_UNSUPPORTED, "tag {} is not below 2^{}, which is all that {} can match", tag, bits - 1, matcher_.id);
  }
  // Tags of the core: 8 bits for the kind and algorithm, and of the number below them what is left.
  constexpr uint32_t kClassBits = 8;
  const uint32_t number_bits = bits - 1 - kClassBits;
  const uint64_t number = tag & (BP_BIT(number_bits) - 1);
  return internal | (tag >> 48 & (BP_BIT(kClassBits) - 1)) << number_bits | number;
}

int32_t Agent::wait(bp_work* work, Deadline deadline, bp_error* err) const {
  for (;;) {
    const int32_t status = api_->work_wait(self_, work, Interruptible::next_look(deadline).left_ns(), err);
    if (status != BP_AGAIN || !Interruptible::active() || deadline.passed()) return status;
    Interruptible::check();
  }
}

const bp_calls_api* Agent::calls() const {
  if (stages_.size() == 1) return nullptr;
  const auto* table = static_cast<const bp_calls_api*>(extension(BP_EXT_CALLS));
  return table != nullptr && BP_HAS(table, ended) && table->ended != nullptr ? table : nullptr;
}

std::byte* Workspace::scratch(uint64_t size) {
  constexpr uint64_t kMostKept = 4 << 20;
  if (size > kMostKept) {
    large_.reset();
    large_.reset(new std::byte[size]);
    return large_.get();
  }
  if (!scratch_ || scratch_size_ < size) {
    scratch_size_ = 0;  // if there is no memory
    scratch_.reset();
    scratch_.reset(new std::byte[size]);
    scratch_size_ = size;
  }
  return scratch_.get();
}

void Workspace::trim() {
  planner_.trim();
  large_.reset();
}

std::unique_ptr<Workspace> Agent::borrow_workspace() {
  {
    const std::lock_guard lock(workspace_mutex_);
    if (workspace_) return std::move(workspace_);
  }
  return std::make_unique<Workspace>();
}

void Agent::return_workspace(std::unique_ptr<Workspace> workspace) {
  workspace->trim();
  const std::lock_guard lock(workspace_mutex_);
  if (!workspace_ || workspace_->scratch_size() < workspace->scratch_size()) workspace_ = std::move(workspace);
}

bool Agent::hung() const {
  return std::any_of(stages_.begin(), stages_.end(), [](const auto& stage) { return stage->hung(); });
}

void Agent::abort(const bp_error& why) {
  for (const auto& stage : stages_) stage->request_abort(why.text);
  api_->abort(self_, &why);
}

}  // namespace backplane::core
