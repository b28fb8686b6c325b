// SPDX-License-Identifier: Apache-2.0
//
// Many small buffers travel as one: packs (megengine.distributed.helper).
#pragma once

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backplane/memory.hpp"
#include "backplane/process_group.hpp"

namespace backplane {

// Extents of a tensor; none: a scalar, one element.
using Shape = std::vector<int64_t>;

// The elements of a shape. Status::kInvalid for a negative extent, or for more elements than can be counted.
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

// Where tensors of these shapes lie in a pack, in elements: {begin0, end0, begin1, end1, ...}.
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

// Where packs live, and how bytes come there and back. Left as it is: the group's own host memory
// (ProcessGroup::allocate), which its backend reaches directly if it can, for buffers in host memory;
// pack_allreduce_split takes ordinary memory instead.
struct PackMemory {
  Device device = {};
  // Memory on `device` instead; needed if that is not the host.
  std::function<std::shared_ptr<void>(uint64_t bytes)> allocate = {};
  // Copies between buffers of the same dtype and count; done when it returns. Needed if one of them is not in host
  // memory. Called on whatever thread packs.
  std::function<void(const Buffer& to, const Buffer& from)> copy = {};
};

namespace detail {

inline std::string name_of_device(Device device) {
  return device.memory == BP_HOST ? "host memory" : "cuda:" + std::to_string(device.ordinal);
}

inline void copy_buffer(const PackMemory& memory, const Buffer& to, const Buffer& from) {
  if (from.count() == 0) return;
  if (to.device().memory == BP_HOST && from.device().memory == BP_HOST) {
    std::memcpy(to.data(), from.data(), from.count() * size_of(from.dtype()));
  } else if (memory.copy) {
    memory.copy(to, from);
  } else {
    fail(Status::kUnsupported, "nobody said how to copy from " + name_of_device(from.device()) + " to " +
                                   name_of_device(to.device()) + "; give PackMemory a copy function");
  }
}

inline Buffer part_of(const Buffer& pack, uint64_t begin, uint64_t end) {
  return Buffer(static_cast<char*>(pack.data()) + begin * size_of(pack.dtype()), end - begin, pack.dtype(),
                pack.device());
}

// Do the offsets describe `parts` inside the pack, and are they all of its dtype?
inline void check_parts(const Buffer& pack, std::span<const uint64_t> offsets, std::span<const Buffer> parts) {
  if (offsets.size() != 2 * parts.size()) {
    fail(Status::kInvalid, "a pack of " + std::to_string(parts.size()) + " buffers needs two offsets for each, not " +
                               std::to_string(offsets.size()) + " in all");
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const uint64_t begin = offsets[2 * i];
    const uint64_t end = offsets[2 * i + 1];
    const std::string which = "buffer " + std::to_string(i) + " of a pack ";
    if (begin > end || end > pack.count()) fail(Status::kInvalid, which + "lies outside of it");
    if (parts[i].count() != end - begin) {
      fail(Status::kInvalid,
           which + "has " + std::to_string(parts[i].count()) + " elements, its offsets " + std::to_string(end - begin));
    }
    if (parts[i].dtype() != pack.dtype()) {
      fail(Status::kInvalid, which + "of " + name_of(pack.dtype()) + " is of " + name_of(parts[i].dtype()));
    }
  }
}

}  // namespace detail

// Copies each input to its place in `pack`. All are of the pack's dtype; they may live on different devices.
inline void pack_concat(std::span<const Buffer> inputs, std::span<const uint64_t> offsets, const Buffer& pack,
                        const PackMemory& memory = {}) {
  detail::check_parts(pack, offsets, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    detail::copy_buffer(memory, detail::part_of(pack, offsets[2 * i], offsets[2 * i + 1]), inputs[i]);
  }
}
// The way back: copies each place in `pack` to its output, on whatever device that lives.
inline void pack_split(const Buffer& pack, std::span<const uint64_t> offsets, std::span<const Buffer> outputs,
                       const PackMemory& memory = {}) {
  detail::check_parts(pack, offsets, outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    detail::copy_buffer(memory, outputs[i], detail::part_of(pack, offsets[2 * i], offsets[2 * i + 1]));
  }
}
// The places themselves, without a copy: views that live as long as the pack.
inline std::vector<Buffer> pack_split(const Buffer& pack, std::span<const uint64_t> offsets) {
  if (offsets.size() % 2 != 0) detail::fail(Status::kInvalid, "the offsets of a pack are an even number");
  std::vector<Buffer> parts;
  for (size_t i = 0; i + 1 < offsets.size(); i += 2) {
    parts.emplace_back(nullptr, offsets[i + 1] - offsets[i], pack.dtype(), pack.device());
  }
  detail::check_parts(pack, offsets, parts);
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = detail::part_of(pack, offsets[2 * i], offsets[2 * i + 1]);
  return parts;
}

// What becomes of the gradients of all ranks: their sum, or that divided by the world size (ReduceOp::kAvg).
enum class ReduceMethod { kSum, kMean };

// "sum" or "mean", in any case.
inline ReduceMethod reduce_method(std::string_view name) {
  std::string lower;
  for (const char letter : name) lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(letter))));
  if (lower == "sum") return ReduceMethod::kSum;
  if (lower != "mean") detail::fail(Status::kInvalid, "the reduce method is sum or mean, not '" + lower + "'");
  return ReduceMethod::kMean;
}

namespace detail {

constexpr ReduceOp op_of(ReduceMethod method) { return method == ReduceMethod::kSum ? ReduceOp::kSum : ReduceOp::kAvg; }

inline std::shared_ptr<void> ordinary_memory(uint64_t bytes) {
  return {::operator new(bytes), [](void* data) { ::operator delete(data); }};
}

// Buffers of one dtype, reduced in place as one. Keeps the memory of its largest pack.
class PackReducer {
 public:
  explicit PackReducer(PackMemory memory) : memory_(std::move(memory)) {}

  void reduce(ProcessGroup& group, std::span<const Buffer> buffers, std::span<const uint64_t> offsets,
              ReduceMethod method) {
    if (buffers.empty()) return;
    // One buffer that is there already is its own pack.
    if (buffers.size() == 1 && buffers[0].device() == memory_.device) {
      group.all_reduce(buffers[0], op_of(method));
      return;
    }
    const DType dtype = buffers[0].dtype();
    const uint64_t bytes = offsets.back() * size_of(dtype);
    if (bytes > capacity_) {
      capacity_ = 0;
      bytes_ = nullptr;
      bytes_ = allocate(group, bytes);
      capacity_ = bytes;
    }
    const Buffer pack(bytes_.get(), offsets.back(), dtype, memory_.device);
    pack_concat(buffers, offsets, pack, memory_);
    group.all_reduce(pack, op_of(method));
    pack_split(pack, offsets, buffers, memory_);
  }

  // Does its memory belong to the backend, so that packs need not be staged?
  bool native() const { return native_; }

 private:
  std::shared_ptr<void> allocate(ProcessGroup& group, uint64_t bytes) {
    native_ = false;
    if (memory_.allocate) return memory_.allocate(bytes);
    if (memory_.device.memory != BP_HOST) {
      fail(Status::kUnsupported, "nobody said how to allocate packs on " + name_of_device(memory_.device) +
                                     "; give PackMemory an allocate function");
    }
    try {
      const auto own = std::make_shared<Memory<uint8_t>>(group.allocate<uint8_t>(bytes));
      native_ = own->native();
      return {own, own->data()};
    } catch (const Error& e) {
      if (e.status() != Status::kResource) throw;  // a small /dev/shm; there may be ordinary memory all the same
    }
    return ordinary_memory(bytes);
  }

  const PackMemory memory_;
  std::shared_ptr<void> bytes_;
  uint64_t capacity_ = 0;
  bool native_ = false;
};

}  // namespace detail

// Reduces buffers of one dtype in place, as one pack; each result ends where its buffer lives. Shapes say how many
// elements each has. Collective; blocks.
inline void pack_allreduce_split(std::span<const Buffer> buffers, std::span<const Shape> shapes, ProcessGroup& group,
                                 ReduceMethod method, const PackMemory& memory = {}) {
  const Offsets offsets = get_offsets(shapes);
  const Buffer whole(nullptr, offsets.empty() ? 0 : offsets.back(), buffers.empty() ? DType::kU8 : buffers[0].dtype());
  detail::check_parts(whole, offsets, buffers);
  PackMemory once = memory;
  // Memory of the group's is new to each rank that reads it, which for a single call takes longer than to stage it.
  if (!once.allocate && once.device.memory == BP_HOST) once.allocate = detail::ordinary_memory;
  detail::PackReducer(once).reduce(group, buffers, offsets, method);
}

}  // namespace backplane
