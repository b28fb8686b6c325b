// SPDX-License-Identifier: Apache-2.0
//
// Names of megengine.distributed: is_distributed, override_backend, synchronized, and the packs of its helper module.
#pragma once

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "backplane/detail/packing.hpp"
#include "backplane/distributed.hpp"

namespace backplane {

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

// Blocks until all ranks have called it. Throws this rank's failure, or else that of the lowest rank that has one.
inline void end_synchronized(ProcessGroup& group, const std::exception_ptr& failure, Timeout timeout) {
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

namespace compat {

// True if there is a default group.
inline bool is_distributed() { return is_initialized(); }

// megengine.distributed's override_backend: during its lifetime, calls of its thread that pass no group use the same
// ranks over another backend. Overrides nest; the innermost is in force.
class OverrideBackend {
 public:
  // `backend` is written as in GroupOptions. `group` left out: the group of the override in force, else the default
  // one. All ranks of the group must construct one, in the same order. Blocks until they have.
  explicit OverrideBackend(const std::string& backend, std::optional<ProcessGroup> group = {},
                           Timeout timeout = kDefaultTimeout)
      : group_((group ? *group : default_group()).with_backend(backend, timeout)), before_(detail::overriding_group) {
    detail::overriding_group = &group_;
  }
  // Must run on the constructing thread, in reverse order of construction.
  ~OverrideBackend() { detail::overriding_group = before_; }
  OverrideBackend(const OverrideBackend&) = delete;
  OverrideBackend& operator=(const OverrideBackend&) = delete;

 private:
  const ProcessGroup group_;
  const ProcessGroup* const before_;
};

// Returns a function that calls `function` and returns its result once it has returned on all ranks of the group.
// Without a group and without a default group it only calls `function`. All ranks must call it, in the same order. If
// `function` throws on one rank, that rank throws the same exception and the others throw Status::kCancelled with that
// rank's number and text. `timeout` limits the wait for the other ranks.
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
      detail::end_synchronized(chosen, failure, timeout);
    }
    if (failure) std::rethrow_exception(failure);
    if constexpr (!kVoid) return std::move(*result);
  };
}

// Extents of a tensor. An empty shape is a scalar, which has one element.
using Shape = std::vector<int64_t>;

// The number of elements of a shape. Status::kInvalid if an extent is negative or the number exceeds 64 bits.
inline uint64_t count_of(const Shape& shape) {
  uint64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) detail::fail(Status::kInvalid, "a shape has the negative extent " + std::to_string(extent));
    const auto factor = static_cast<uint64_t>(extent);
    if (factor != 0 && count > std::numeric_limits<uint64_t>::max() / factor) {
      detail::fail(Status::kInvalid, "a shape has more elements than 64 bits can count");
    }
    count *= factor;
  }
  return count;
}

// Positions in a pack of tensors of these shapes, in elements: {begin0, end0, begin1, end1, ...}.
using Offsets = std::vector<uint64_t>;
inline Offsets get_offsets(std::span<const Shape> shapes) {
  Offsets offsets;
  uint64_t end = 0;
  for (const Shape& shape : shapes) {
    offsets.push_back(end);
    offsets.push_back(end += count_of(shape));
  }
  return offsets;
}

// Copies each input to its position in `pack`. All must have the pack's dtype; they may be on different devices.
// Blocks.
inline void pack_concat(std::span<const ConstBuffer> inputs, std::span<const uint64_t> offsets, const Buffer& pack,
                        const PackMemory& memory = {}) {
  detail::fill_pack(inputs, offsets, pack, memory);
}
// Copies each position in `pack` to its output, the reverse of pack_concat. Blocks.
inline void pack_split(const ConstBuffer& pack, std::span<const uint64_t> offsets, std::span<const Buffer> outputs,
                       const PackMemory& memory = {}) {
  detail::empty_pack(pack, offsets, outputs, memory);
}
// Returns views of the positions in `pack`, without a copy. They are valid as long as the pack's memory.
inline std::vector<Buffer> pack_split(const Buffer& pack, std::span<const uint64_t> offsets) {
  if (offsets.size() % 2 != 0)
    detail::fail(Status::kInvalid, "a pack needs two offsets for each part, so an even number of them");
  std::vector<Buffer> parts;
  for (size_t i = 0; i + 1 < offsets.size(); i += 2) {
    parts.emplace_back(nullptr, offsets[i + 1] - offsets[i], pack.dtype(), pack.device());
  }
  detail::check_parts<Buffer>(pack, offsets, parts);
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = detail::part_of(pack, offsets[2 * i], offsets[2 * i + 1]);
  return parts;
}

// The method by name: "sum" or "mean", in upper or lower case. Status::kInvalid for other names.
inline ReduceMethod reduce_method(std::string_view name) {
  std::string lower;
  for (const char letter : name) lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(letter))));
  if (lower == "sum") return ReduceMethod::kSum;
  if (lower != "mean") detail::fail(Status::kInvalid, "the reduce method is sum or mean, not '" + lower + "'");
  return ReduceMethod::kMean;
}

// Reduces buffers of one dtype in place, as one pack, over all ranks of `group`. shapes[i] must have as many elements
// as buffers[i]. All ranks must call it, with the same shapes. Blocks.
inline void pack_allreduce_split(std::span<const Buffer> buffers, std::span<const Shape> shapes, ProcessGroup& group,
                                 ReduceMethod method, const PackMemory& memory = {}) {
  const Offsets offsets = get_offsets(shapes);
  const ConstBuffer whole(nullptr, offsets.empty() ? 0 : offsets.back(),
                          buffers.empty() ? DType::kU8 : buffers[0].dtype());
  detail::check_parts(whole, offsets, buffers);
  PackMemory once = memory;
  // Each peer maps the group's memory at its first use, which for a single call takes longer than staging.
  if (!once.allocate && once.device.memory == BP_HOST) once.allocate = detail::ordinary_memory;
  detail::PackReducer(once).reduce(group, buffers, offsets, method);
}

}  // namespace compat
}  // namespace backplane
