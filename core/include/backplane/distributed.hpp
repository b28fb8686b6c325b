// SPDX-License-Identifier: Apache-2.0
//
// The calls of the torch.distributed module: one default group per process, and everything on it or on a group given.
// Names, arguments and errors are those of torch.distributed and of hfai.distributed's zmq backend.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "backplane/process_group.hpp"

namespace backplane {

// Names of the zmq backend in hfai.distributed. `hf_zmq` becomes the default group; `hf_zmq_local` returns a group and
// leaves the default alone, for use inside libraries. HF_BARRIER_BACKEND is an old alias.
inline constexpr const char* HF_ZMQ_BACKEND = "hf_zmq";
inline constexpr const char* HF_ZMQ_LOCAL_BACKEND = "hf_zmq_local";
inline constexpr const char* HF_BARRIER_BACKEND = HF_ZMQ_BACKEND;

// Makes the default group and waits for all ranks. A second time is Status::kInvalid, except for a backend that leaves
// the default alone.
inline ProcessGroup init_process_group(const GroupOptions& options = {}) {
  return ProcessGroup::make(bp_init_process_group, options);
}
inline ProcessGroup init_process_group(const std::string& backend, GroupOptions options = {}) {
  options.backend = backend;
  return init_process_group(options);
}
// Ends the default group and every group made from it.
inline void destroy_process_group() { detail::call(bp_destroy_process_group); }
inline bool is_initialized() { return bp_is_initialized() != 0; }
// Is the library usable at all? It is, if it is linked; torch.distributed asks the same question.
inline constexpr bool is_available() { return true; }

// Is there a default group? megengine.distributed asks so.
inline bool is_distributed() { return is_initialized(); }

namespace detail {
inline thread_local const ProcessGroup* overriding_group = nullptr;
}  // namespace detail

// The default group, or that of the OverrideBackend in force on this thread; Status::kInvalid before
// init_process_group.
inline ProcessGroup default_group() {
  if (detail::overriding_group != nullptr) return *detail::overriding_group;
  bp_group* group = nullptr;
  detail::call(bp_default_group, &group);
  return ProcessGroup(group);
}

// `group` left out is the default one.
using OptionalGroup = std::optional<ProcessGroup>;

namespace detail {
inline ProcessGroup chosen(const OptionalGroup& group) { return group ? *group : default_group(); }
}  // namespace detail

// As long as it lives, calls of its thread that name no group go to the same ranks over another backend (written as in
// GroupOptions): megengine.distributed's override_backend. Overrides may be nested; the innermost holds.
class OverrideBackend {
 public:
  // Collective: all ranks of the group (left out: the default one, or the override in force) override alike. Blocks
  // until they have.
  explicit OverrideBackend(const std::string& backend, std::optional<ProcessGroup> group = {},
                           Timeout timeout = kDefaultTimeout)
      : group_((group ? *group : default_group()).with_backend(backend, timeout)), before_(detail::overriding_group) {
    detail::overriding_group = &group_;
  }
  // On the thread that made it, and in the reverse order.
  ~OverrideBackend() { detail::overriding_group = before_; }
  OverrideBackend(const OverrideBackend&) = delete;
  OverrideBackend& operator=(const OverrideBackend&) = delete;

 private:
  const ProcessGroup group_;
  const ProcessGroup* const before_;
};

inline int get_rank(const OptionalGroup& group = {}) { return detail::chosen(group).rank(); }
inline int get_world_size(const OptionalGroup& group = {}) { return detail::chosen(group).world_size(); }
inline std::string get_backend(const OptionalGroup& group = {}) { return detail::chosen(group).backend(); }
// Made by all ranks of the default group in the same order; empty `ranks` means all of them.
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
inline Work broadcast(Buffer buffer, int src, const OptionalGroup& group = {}, const CallOptions& options = {}) {
  return detail::chosen(group).broadcast(buffer, src, options);
}
inline Work all_reduce(Buffer buffer, ReduceOp op = ReduceOp::kSum, const OptionalGroup& group = {},
                       const CallOptions& options = {}) {
  return detail::chosen(group).all_reduce(buffer, op, options);
}
// In place; only dst's buffer holds the result afterwards, the others are left as they were.
inline Work reduce(Buffer buffer, int dst, ReduceOp op = ReduceOp::kSum, const OptionalGroup& group = {},
                   const CallOptions& options = {}) {
  ProcessGroup pg = detail::chosen(group);
  return pg.reduce(buffer, pg.rank() == dst ? buffer : Buffer(), dst, op, options);
}
inline Work all_gather(Buffer out, Buffer in, const OptionalGroup& group = {}, const CallOptions& options = {}) {
  return detail::chosen(group).all_gather(in, out, options);
}
inline Work gather(Buffer in, Buffer out, int dst = 0, const OptionalGroup& group = {},
                   const CallOptions& options = {}) {
  return detail::chosen(group).gather(in, out, dst, options);
}
inline Work scatter(Buffer out, Buffer in, int src = 0, const OptionalGroup& group = {},
                    const CallOptions& options = {}) {
  return detail::chosen(group).scatter(in, out, src, options);
}
inline Work reduce_scatter(Buffer out, Buffer in, ReduceOp op = ReduceOp::kSum, const OptionalGroup& group = {},
                           const CallOptions& options = {}) {
  return detail::chosen(group).reduce_scatter(in, out, op, options);
}
inline Work all_to_all(Buffer out, Buffer in, const OptionalGroup& group = {}, const CallOptions& options = {}) {
  return detail::chosen(group).all_to_all(in, out, options);
}
inline void send(Buffer buffer, int dst, const OptionalGroup& group = {}, uint32_t tag = 0) {
  detail::chosen(group).send(buffer, dst, tag);
}
// Returns the sender's rank.
inline int recv(Buffer buffer, int src = ProcessGroup::kAnySource, const OptionalGroup& group = {}, uint32_t tag = 0) {
  return detail::chosen(group).recv(buffer, src, tag).received().source;
}
inline Work isend(Buffer buffer, int dst, const OptionalGroup& group = {}, uint32_t tag = 0) {
  return detail::chosen(group).isend(buffer, dst, tag);
}
inline Work irecv(Buffer buffer, int src = ProcessGroup::kAnySource, const OptionalGroup& group = {},
                  uint32_t tag = 0) {
  return detail::chosen(group).irecv(buffer, src, tag);
}

namespace detail {

inline std::string text_of(const std::exception_ptr& failure) {
  if (!failure) return "";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return std::string("it failed: ") + e.what();
  } catch (...) {
    return "it failed with an exception of unknown type";
  }
}

// Waits for the others' ends; throws this rank's failure, or else that of the lowest rank that has one.
inline void meet(ProcessGroup& group, const std::exception_ptr& failure, Timeout timeout) {
  std::vector<std::string> ends;
  try {
    ends = group.all_gather_object(text_of(failure), timeout);
  } catch (const Error&) {
    if (!failure) throw;
  }
  if (failure) std::rethrow_exception(failure);
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    if (ends[rank].empty()) continue;
    fail(Status::kCancelled, "rank " + std::to_string(rank) + " did not finish a synchronized function: " + ends[rank],
         static_cast<int>(rank));
  }
}

}  // namespace detail

// A function that returns when it has returned on all ranks of the group; without a default group and without one
// given, just the function. An exception of one rank reaches the others too, as Status::kCancelled with that rank's
// number and text, instead of leaving them to wait for it. It returns by value.
template <typename Function>
auto synchronized(Function function, OptionalGroup group = {}, Timeout timeout = kDefaultTimeout) {
  return [function = std::move(function), group = std::move(group), timeout](auto&&... arguments) mutable {
    using Result = std::invoke_result_t<Function&, decltype(arguments)...>;
    constexpr bool kVoid = std::is_void_v<Result>;
    std::conditional_t<kVoid, std::monostate, std::optional<std::decay_t<Result>>> result;
    std::exception_ptr failure;
    try {
      if constexpr (kVoid) {
        std::invoke(function, std::forward<decltype(arguments)>(arguments)...);
      } else {
        result.emplace(std::invoke(function, std::forward<decltype(arguments)>(arguments)...));
      }
    } catch (...) {
      failure = std::current_exception();
    }
    if (group || is_distributed()) {
      ProcessGroup chosen = detail::chosen(group);
      detail::meet(chosen, failure, timeout);
    }
    if (failure) std::rethrow_exception(failure);
    if constexpr (!kVoid) return std::move(*result);
  };
}

}  // namespace backplane
