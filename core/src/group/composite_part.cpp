// SPDX-License-Identifier: Apache-2.0
#include "group/composite_part.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "error.hpp"

namespace backplane::core {
namespace {

uint32_t bits_of(uint32_t tag_bits) { return tag_bits == 0 ? 64 : tag_bits; }

// The configuration of the part's agent.
AgentConfig part_config(const AgentConfig& group, const std::vector<int32_t>& ranks, const std::string& keys,
                        const CompositePart* parent) {
  AgentConfig config = group;
  config.rank = static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), group.rank) - ranks.begin());
  config.world_size = static_cast<int32_t>(ranks.size());
  config.rank_in_group = group.rank;
  config.global_ranks.clear();
  for (const int32_t rank : ranks) config.global_ranks.push_back(group.global_ranks[static_cast<size_t>(rank)]);
  config.store = make_prefix_store(group.store, keys);
  if (parent != nullptr) {
    config.parent = &parent->instance().unisolated_agent();
  } else {
    config.parent = nullptr;
    config.parent_ranks.clear();
    config.parent_owner.reset();
  }
  return config;
}

}  // namespace

CompositePart::CompositePart(const Member& member, std::shared_ptr<const BackendOptions> options,
                             std::vector<int32_t> ranks, const AgentConfig& config, const std::string& keys,
                             uint32_t composite_tag_bits, const CompositePart* parent)
    : ranks_(std::move(ranks)),
      rank_of_(static_cast<size_t>(config.world_size), -1),
      composite_bits_(bits_of(composite_tag_bits)),
      own_bits_(bits_of(member.backend->tag_bits)) {
  for (size_t i = 0; i < ranks_.size(); ++i) rank_of_[static_cast<size_t>(ranks_[i])] = static_cast<int32_t>(i);
  AgentConfig own = part_config(config, ranks_, keys, parent);
  own.in_group = [this](const Error& why) { return error_in_group(why); };
  if (config.on_failure) {
    own.on_failure = [this, report = config.on_failure](const Error& why) { report(error_in_group(why)); };
  }
  instance_ = std::make_unique<PluginInstance>(member, std::move(options), own, nullptr);
  const bp_agent& agent = instance_->agent();
  api_ = static_cast<const bp_process_group_api*>(agent.api);
  self_ = agent.self;
  const auto* const probe = static_cast<const bp_probe_api*>(extension(BP_EXT_PROBE));
  if (probe != nullptr && BP_HAS(probe, drop) && probe->probe != nullptr && probe->drop != nullptr) probe_ = probe;
  const auto* const notify = static_cast<const bp_notify_api*>(extension(BP_EXT_NOTIFY));
  if (notify != nullptr && BP_HAS(notify, on_end) && notify->on_end != nullptr) notify_ = notify;
}

int32_t CompositePart::rank_in_part(int32_t rank) const {
  return rank < 0 ? rank : rank_of_[static_cast<size_t>(rank)];
}

// The highest bit that a backend matches says that a tag is internal.
uint64_t CompositePart::tag_in_part(uint64_t tag) const {
  const uint64_t internal = BP_BIT(composite_bits_ - 1);
  if (own_bits_ == composite_bits_ || tag == BP_ANY_TAG || (tag & internal) == 0) return tag;
  return (tag & ~internal) | BP_BIT(own_bits_ - 1);
}

bp_op CompositePart::op_in_part(const bp_op& op, bp_result* result) const {
  bp_op own = {};
  own.struct_size = sizeof own;
  own.kind = op.kind;
  own.dtype = op.dtype;
  own.peer = rank_in_part(op.peer);
  own.tag = tag_in_part(op.tag);
  own.seq = op.seq;
  own.flags = op.flags;
  own.timeout_ns = op.timeout_ns;
  own.input = op.input;
  own.output = op.output;
  own.result = result;
  return own;
}

void CompositePart::result_in_group(bp_result* result) const {
  if (result->source >= 0 && static_cast<size_t>(result->source) < ranks_.size()) {
    result->source = ranks_[static_cast<size_t>(result->source)];
  }
  const uint64_t internal = BP_BIT(own_bits_ - 1);
  if (own_bits_ != composite_bits_ && (result->tag & internal) != 0) {
    result->tag = (result->tag & ~internal) | BP_BIT(composite_bits_ - 1);
  }
}

// Backends write "rank N" with the numbers that they know.
std::string CompositePart::text_in_group(const std::string& text) const {
  constexpr std::string_view kRank = "rank ";
  std::string result;
  size_t from = 0;
  for (size_t at = text.find(kRank); at != std::string::npos; at = text.find(kRank, from)) {
    const size_t begin = at + kRank.size();
    result += text.substr(from, begin - from);
    from = begin;
    size_t number = 0;
    const auto parsed = std::from_chars(text.data() + begin, text.data() + text.size(), number);
    if (parsed.ec != std::errc() || number >= ranks_.size()) continue;
    result += std::to_string(ranks_[number]);
    from = static_cast<size_t>(parsed.ptr - text.data());
  }
  return result + text.substr(from);
}

void CompositePart::abort(const bp_error& why) {
  {
    const std::lock_guard lock(cause_mutex_);
    if (!cause_) cause_ = Cause{why.status, why.peer_rank};
  }
  bp_error own = why;
  own.peer_rank = -1;  // its text names the rank, which may be none of this part
  api_->abort(self_, &own);
}

// Only the text of an error with a peer is the plugin's own for certain. Others may have come to it from the core, with
// ranks of the group: the cause of the abort, or a failure of the store.
Error CompositePart::error_in_group(const Error& error) const {
  const int32_t peer = error.peer_rank();
  if (peer < 0) {
    const std::lock_guard lock(cause_mutex_);
    if (!cause_ || cause_->status != error.status()) return error;
    return Error(error.status(), error.what(), cause_->peer, error.native_code());
  }
  if (static_cast<size_t>(peer) >= ranks_.size()) return error;
  return Error(error.status(), text_in_group(error.what()), ranks_[static_cast<size_t>(peer)], error.native_code());
}

int32_t CompositePart::error_in_group(int32_t status, const bp_error& from, bp_error* to) const {
  if (status == BP_OK || status == BP_AGAIN || to == nullptr) return status;
  const Error error = error_in_group(Error(status, from.text, from.peer_rank, from.native_code));
  return bp_error_set(to, status, error.native_code(), error.peer_rank(), error.what());
}

}  // namespace backplane::core
