// SPDX-License-Identifier: Apache-2.0
//
// Packs: many small buffers of one dtype, copied into one and reduced together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "backplane/process_group.hpp"

namespace backplane {

// The result of reducing gradients: their sum over all ranks, or that divided by the world size (ReduceOp::kAvg).
enum class ReduceMethod { kSum, kMean };

// The memory that holds packs, and the functions that copy to and from it. Default: the group's host memory
// (ProcessGroup::allocate), for buffers in host memory.
struct PackMemory {
  Device device = {};
  // Returns `bytes` bytes of memory on `device`. Required if `device` is not the host.
  std::function<std::shared_ptr<void>(uint64_t bytes)> allocate = {};
  // Copies between buffers of the same dtype and count. Must block until the copy is complete. Required if either
  // buffer is not in host memory. Called on the thread that packs.
  std::function<void(const ConstBuffer& from, const Buffer& to)> copy = {};
};

namespace detail {

inline std::string name_of_device(Device device) {
  return device.memory == BP_HOST ? "host memory" : "cuda:" + std::to_string(device.ordinal);
}

inline void copy_buffer(const ConstBuffer& from, const Buffer& to, const PackMemory& memory) {
  if (from.count() == 0) return;
  if (to.device().memory == BP_HOST && from.device().memory == BP_HOST) {
    std::memcpy(to.data(), from.data(), from.count() * size_of(from.dtype()));
  } else if (memory.copy) {
    memory.copy(from, to);
  } else {
    fail(Status::kUnsupported, "cannot copy from " + name_of_device(from.device()) + " to " +
                                   name_of_device(to.device()) + "; give PackMemory a copy function");
  }
}

// Elements [begin, end) of a Buffer or ConstBuffer.
template <typename AnyBuffer>
AnyBuffer part_of(const AnyBuffer& pack, uint64_t begin, uint64_t end) {
  using Byte = std::conditional_t<std::is_same_v<AnyBuffer, Buffer>, char, const char>;
  return AnyBuffer(static_cast<Byte*>(pack.data()) + begin * size_of(pack.dtype()), end - begin, pack.dtype(),
                   pack.device());
}

// Throws unless part i has the pack's dtype and fills [offsets[2i], offsets[2i+1]) of it, which lies inside the pack.
template <typename AnyBuffer>
void check_parts(const ConstBuffer& pack, std::span<const uint64_t> offsets, std::span<const AnyBuffer> parts) {
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

template <typename AnyBuffer>
void fill_pack(std::span<const AnyBuffer> parts, std::span<const uint64_t> offsets, const Buffer& pack,
               const PackMemory& memory) {
  check_parts(pack, offsets, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    copy_buffer(parts[i], part_of(pack, offsets[2 * i], offsets[2 * i + 1]), memory);
  }
}
inline void empty_pack(const ConstBuffer& pack, std::span<const uint64_t> offsets, std::span<const Buffer> parts,
                       const PackMemory& memory) {
  check_parts(pack, offsets, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    copy_buffer(part_of(pack, offsets[2 * i], offsets[2 * i + 1]), parts[i], memory);
  }
}

constexpr ReduceOp op_of(ReduceMethod method) { return method == ReduceMethod::kSum ? ReduceOp::kSum : ReduceOp::kAvg; }

inline std::shared_ptr<void> ordinary_memory(uint64_t bytes) {
  return {::operator new(bytes), [](void* data) { ::operator delete(data); }};
}

// Reduces buffers of one dtype in place, as one pack. Keeps the memory of its largest pack.
class PackReducer {
 public:
  explicit PackReducer(PackMemory memory) : memory_(std::move(memory)) {}

  void reduce(ProcessGroup& group, std::span<const Buffer> buffers, std::span<const uint64_t> offsets,
              ReduceMethod method) {
    if (buffers.empty()) return;
    // A single buffer on the pack's device is reduced without a copy.
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
    fill_pack(buffers, offsets, pack, memory_);
    group.all_reduce(pack, op_of(method));
    empty_pack(pack, offsets, buffers, memory_);
  }

  // True if its memory is the backend's, so that packs are not staged.
  bool native() const { return native_; }

 private:
  std::shared_ptr<void> allocate(ProcessGroup& group, uint64_t bytes) {
    native_ = false;
    if (memory_.allocate) return memory_.allocate(bytes);
    if (memory_.device.memory != BP_HOST) {
      fail(Status::kUnsupported,
           "cannot allocate packs on " + name_of_device(memory_.device) + "; give PackMemory an allocate function");
    }
    try {
      const auto own = std::make_shared<Memory<uint8_t>>(group.allocate<uint8_t>(bytes));
      native_ = own->native();
      return {own, own->data()};
    } catch (const Error& e) {
      if (e.status() != Status::kResource) throw;  // /dev/shm may be full while ordinary memory is not
    }
    return ordinary_memory(bytes);
  }

  const PackMemory memory_;
  std::shared_ptr<void> bytes_;
  uint64_t capacity_ = 0;
  bool native_ = false;
};

}  // namespace detail
}  // namespace backplane
