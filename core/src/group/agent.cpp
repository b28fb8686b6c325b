// SPDX-License-Identifier: Apache-2.0
#include "group/agent.hpp"

#include <algorithm>

#include "error.hpp"
#include "group/composite.hpp"
#include "group/operation.hpp"

namespace backplane::core {
namespace {

constexpr uint32_t kClassBits = 8;  // of an internal tag: its kind and algorithm

}  // namespace

const bp_backend& matcher_of(const bp_backend& backend, const std::vector<ChosenPlugin>& layers) {
  const auto found = std::find_if(layers.begin(), layers.end(), [](const ChosenPlugin& layer) {
    return (layer.member->backend->flags & BP_BACKEND_TAGS) != 0;
  });
  return found == layers.end() ? backend : *found->member->backend;
}

Agent::Agent(const ChosenPlugin& backend, const std::vector<ChosenPlugin>& layers, const AgentConfig& config)
    : matcher_(matcher_of(*backend.member->backend, layers)) {
  if (backend.member->parts.empty()) {
    instances_.push_back(std::make_unique<PluginInstance>(*backend.member, backend.options, config, nullptr));
  } else {
    instances_.push_back(std::make_unique<Composite>(*backend.member, backend.options, config));
  }
  try {
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      AgentConfig layer_config = config;
      layer_config.inner_backend = backend.member->backend;
      layer_config.parent = nullptr;
      layer_config.parent_ranks.clear();
      layer_config.parent_owner.reset();
      layer_config.store = make_prefix_store(config.store, fmt::format("layer{}/", layer - layers.rbegin()));
      instances_.push_back(
          std::make_unique<PluginInstance>(*layer->member, layer->options, layer_config, &instances_.back()->agent()));
    }
  } catch (...) {
    while (!instances_.empty()) instances_.pop_back();
    throw;
  }
  const bp_agent& outermost = instances_.back()->agent();
  api_ = static_cast<const bp_process_group_api*>(outermost.api);
  self_ = outermost.self;
  learn_capabilities(outermost);
  offer_interruptions();
}

Agent::~Agent() {
  while (!instances_.empty()) {  // from the outermost to the backend
    const bool hung = instances_.back()->hung();
    instances_.pop_back();
    if (!hung) continue;
    for (auto& instance : instances_) static_cast<void>(instance.release());  // a detached call may still use them
    instances_.clear();
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

void Agent::offer_interruptions() {
  const auto* table = static_cast<const bp_interrupt_api*>(extension(BP_EXT_INTERRUPT));
  if (table == nullptr || !BP_HAS(table, ask) || table->ask == nullptr) return;
  table->ask(
      table->ctx, [](void*) -> int32_t { return Interruptible::interrupted() ? 1 : 0; }, nullptr);
  asks_program_ = true;
}

bool Agent::supports_schedules() const {
  return native(BP_SEND, BP_U8, 0, BP_HOST, false) && native(BP_RECV, BP_U8, 0, BP_HOST, false);
}

const bp_memory_api* Agent::memory() const {
  const auto* table = static_cast<const bp_memory_api*>(extension(BP_EXT_MEMORY));
  const bool is_complete = table != nullptr && BP_HAS(table, release) && table->allocate != nullptr;
  return is_complete && table->release != nullptr ? table : nullptr;
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
  const bool is_complete = table != nullptr && BP_HAS(table, drop) && table->probe != nullptr && table->drop != nullptr;
  return is_complete ? table : nullptr;
}

uint32_t Agent::internal_tag_bits() const {
  const uint32_t bits = matcher_.tag_bits;
  return bits == 0 || bits >= 64 ? 48 : std::min<uint32_t>(48, bits - 1 - kClassBits);
}

uint64_t Agent::native_tag(uint64_t tag) const {
  const uint32_t bits = matcher_.tag_bits;
  if (bits == 0 || bits >= 64 || tag == BP_ANY_TAG) return tag;
  const uint64_t internal = BP_BIT(bits - 1);
  if ((tag & BP_TAG_INTERNAL) == 0) {
    if (tag < internal) return tag;
    fail(BP_UNSUPPORTED, "tag {} is not below 2^{}, the limit of {}", tag, bits - 1, matcher_.id);
  }
  const uint32_t number_bits = bits - 1 - kClassBits;
  const uint64_t number = tag & (BP_BIT(number_bits) - 1);
  return internal | (tag >> 48 & (BP_BIT(kClassBits) - 1)) << number_bits | number;
}

int32_t Agent::wait(bp_work* work, Deadline deadline, bp_error* err) const {
  for (;;) {
    const int32_t status = api_->work_wait(self_, work, Interruptible::next_check(deadline).left_ns(), err);
    if (status != BP_AGAIN || !Interruptible::active() || deadline.passed()) return status;
    Interruptible::check();
  }
}

const bp_calls_api* Agent::calls() const {
  if (instances_.size() == 1) return nullptr;
  const auto* table = static_cast<const bp_calls_api*>(extension(BP_EXT_CALLS));
  return table != nullptr && BP_HAS(table, ended) && table->ended != nullptr ? table : nullptr;
}

std::byte* Workspace::scratch(uint64_t size) {
  constexpr uint64_t kMaxKept = 4 << 20;
  if (size > kMaxKept) {
    large_.reset();
    large_.reset(new std::byte[size]);
    return large_.get();
  }
  if (!scratch_ || scratch_size_ < size) {
    scratch_size_ = 0;  // in case the allocation fails
    scratch_.reset();
    scratch_.reset(new std::byte[size]);
    scratch_size_ = size;
  }
  return scratch_.get();
}

void Workspace::trim() {
  schedules_.trim();
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
  return std::any_of(instances_.begin(), instances_.end(), [](const auto& instance) { return instance->hung(); });
}

void Agent::abort(const bp_error& why) {
  for (const auto& instance : instances_) instance->request_abort(why.text);
  api_->abort(self_, &why);
}

}  // namespace backplane::core
