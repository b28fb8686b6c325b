// SPDX-License-Identifier: Apache-2.0
//
// The functions of the torch.distributed module: one default group per process, and operations on it or on a group that
// is passed. ProcessGroup's rules hold: inputs come before outputs, an operation blocks unless async_op is set, a
// failure throws Error. The documentation's "From torch.distributed" compares the calls with torch.distributed's.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backplane/process_group.hpp"

namespace backplane {

// Creates the default group. Blocks until all ranks have called it, at most options.timeout. Status::kInvalid if there
// is a default group already. A backend that declares BP_BACKEND_LOCAL creates a group without making it the default.
inline ProcessGroup init_process_group(const GroupOptions& options = {}) {
  return ProcessGroup::make(bp_init_process_group, options);
}
inline ProcessGroup init_process_group(const std::string& backend, GroupOptions options = {}) {
  options.backend = backend;
  return init_process_group(options);
}
// Ends the default group and all groups made from it. Status::kInvalid if there is none.
inline void destroy_process_group() { detail::call(bp_destroy_process_group); }
inline bool is_initialized() { return bp_is_initialized() != 0; }
// True: a program that links the library can use it. torch.distributed has the same function.
inline constexpr bool is_available() { return true; }

namespace detail {
// The group that this thread uses in place of the default one; nullptr: none. compat/megengine.hpp sets it.
inline thread_local const ProcessGroup* overriding_group = nullptr;
}  // namespace detail

// The default group. Status::kInvalid if there is none. On a thread with a compat::OverrideBackend: that one's group.
inline ProcessGroup default_group() {
  if (detail::overriding_group != nullptr) return *detail::overriding_group;
  bp_group* group = nullptr;
  detail::call(bp_default_group, &group);
  return ProcessGroup(group);
}

// A `group` parameter that is left out means the default group.
using OptionalGroup = std::optional<ProcessGroup>;

namespace detail {
inline ProcessGroup chosen(const OptionalGroup& group) { return group ? *group : default_group(); }
}  // namespace detail

inline int get_rank(const OptionalGroup& group = {}) { return detail::chosen(group).rank(); }
inline int get_world_size(const OptionalGroup& group = {}) { return detail::chosen(group).world_size(); }
inline std::string get_backend(const OptionalGroup& group = {}) { return detail::chosen(group).backend(); }
// Creates a group of some ranks of the default group; empty `ranks`: of all. All ranks of the default group must call
// it, in the same order, with the same list. Blocks until the members have called it.
inline ProcessGroup new_group(std::vector<int> ranks = {}, Timeout timeout = kDefaultTimeout) {
  ProcessGroup world = default_group();
  if (ranks.empty()) {
    for (int rank = 0; rank < world.world_size(); ++rank) ranks.push_back(rank);
  }
  return world.new_group(ranks, "", timeout);
}

inline Work barrier(const OptionalGroup& group = {}, const CallOptions& options = {}) {
  return detail::chosen(group).barrier(options);
}
// Copies the buffer of rank `src` to all ranks' buffers.
inline Work broadcast(Buffer buffer, int src, const OptionalGroup& group = {}, const CallOptions& options = {}) {
  return detail::chosen(group).broadcast(buffer, src, options);
}
// In place. Every rank gets the same bits.
inline Work all_reduce(Buffer buffer, ReduceOp op = ReduceOp::kSum, const OptionalGroup& group = {},
                       const CallOptions& options = {}) {
  return detail::chosen(group).all_reduce(buffer, op, options);
}
// In place. Writes the result to the buffer of rank `dst`; the other ranks' buffers are not changed.
inline Work reduce(Buffer buffer, int dst, ReduceOp op = ReduceOp::kSum, const OptionalGroup& group = {},
                   const CallOptions& options = {}) {
  ProcessGroup pg = detail::chosen(group);
  return pg.reduce(buffer, pg.rank() == dst ? buffer : Buffer(), dst, op, options);
}
// in: N. out: N*W, in rank order.
inline Work all_gather(ConstBuffer in, Buffer out, const OptionalGroup& group = {}, const CallOptions& options = {}) {
  return detail::chosen(group).all_gather(in, out, options);
}
// in: N. out: N*W at rank `dst`, in rank order; may be empty elsewhere.
inline Work gather(ConstBuffer in, Buffer out, int dst = 0, const OptionalGroup& group = {},
                   const CallOptions& options = {}) {
  return detail::chosen(group).gather(in, out, dst, options);
}
// in: N*W at rank `src`, in rank order; may be empty elsewhere. out: N.
inline Work scatter(ConstBuffer in, Buffer out, int src = 0, const OptionalGroup& group = {},
                    const CallOptions& options = {}) {
  return detail::chosen(group).scatter(in, out, src, options);
}
// in: N*W. out: this rank's N of the reduced blocks.
inline Work reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op = ReduceOp::kSum, const OptionalGroup& group = {},
                           const CallOptions& options = {}) {
  return detail::chosen(group).reduce_scatter(in, out, op, options);
}
// in, out: N*W. Block r of `in` goes to rank r; block r of `out` comes from it.
inline Work all_to_all(ConstBuffer in, Buffer out, const OptionalGroup& group = {}, const CallOptions& options = {}) {
  return detail::chosen(group).all_to_all(in, out, options);
}
// Sends N elements to rank `dst`. May block until it receives.
inline void send(ConstBuffer buffer, int dst, const OptionalGroup& group = {}, uint32_t tag = 0,
                 const CallOptions& options = {}) {
  detail::chosen(group).send(buffer, dst, tag, options);
}
// Receives at most N elements from rank `src`, or from any rank, with `tag`, or with any tag (ProcessGroup::kAnyTag).
// Returns the sender's rank.
inline int recv(Buffer buffer, int src = ProcessGroup::kAnySource, const OptionalGroup& group = {}, uint64_t tag = 0,
                const CallOptions& options = {}) {
  return detail::chosen(group).recv(buffer, src, tag, options).received().source;
}
[[nodiscard]] inline Work isend(ConstBuffer buffer, int dst, const OptionalGroup& group = {}, uint32_t tag = 0,
                                const CallOptions& options = {}) {
  return detail::chosen(group).isend(buffer, dst, tag, options);
}
[[nodiscard]] inline Work irecv(Buffer buffer, int src = ProcessGroup::kAnySource, const OptionalGroup& group = {},
                                uint64_t tag = 0, const CallOptions& options = {}) {
  return detail::chosen(group).irecv(buffer, src, tag, options);
}
// isend of a vector that the group keeps until the operation is done, so that the Work may be dropped.
template <Element T>
requires(!std::is_same_v<T, bool>) Work isend(std::vector<T>&& message, int dst, const OptionalGroup& group = {},
                                              uint32_t tag = 0, const CallOptions& options = {}) {
  return detail::chosen(group).isend(std::move(message), dst, tag, options);
}

}  // namespace backplane
