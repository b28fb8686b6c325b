// SPDX-License-Identifier: Apache-2.0
//
// Drives an agent with structs of other sizes, as an older or a newer core would.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "../case.hpp"

namespace backplane::conformance::load {

enum class Shape {
  kUsual,   // as in these headers
  kMinor0,  // as in minor 0; the byte behind it is not accessible
  kLonger   // with 256 more bytes of 0xAB, which the struct's size includes
};

constexpr uint32_t kTail = 256;  // bytes
constexpr unsigned char kTailByte = 0xab;

// Sizes at minor 0, from layout.h.
template <typename T>
constexpr uint32_t kMinor0Size = 0;
template <>
constexpr inline uint32_t kMinor0Size<bp_host> = 96;
template <>
constexpr inline uint32_t kMinor0Size<bp_init> = 104;
template <>
constexpr inline uint32_t kMinor0Size<bp_op> = 168;
template <>
constexpr inline uint32_t kMinor0Size<bp_result> = 24;
template <>
constexpr inline uint32_t kMinor0Size<bp_error> = 1112;
template <>
constexpr inline uint32_t kMinor0Size<bp_agent> = 48;
template <>
constexpr inline uint32_t kMinor0Size<bp_options_request> = 32;

// Memory followed by an inaccessible page. Throws std::bad_alloc.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t size);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  void* data() const { return static_cast<char*>(mapping_) + offset_; }

 private:
  void* mapping_;
  size_t mapped_;
  size_t offset_;
};

// The arguments that a bp_init points to, in memory that is unmapped by the destructor: a later read crashes.
class InitArguments {
 public:
  InitArguments(const std::string& name, int32_t world_size, const OptionValues& values);
  const char* name() const { return name_; }
  const int32_t* global_ranks() const { return ranks_; }
  const bp_key_value* values() const { return values_; }
  uint32_t value_count() const { return count_; }

 private:
  GuardedMemory memory_;
  uint32_t count_;
  bp_key_value* values_;
  int32_t* ranks_;
  char* name_;
};

// A struct in one of the shapes. Its struct_size is set, the rest is as given.
template <typename T>
class Shaped {
 public:
  Shaped(Shape shape, const T& value) : size_(size_in(shape)), memory_(size_) {
    std::memset(memory_.data(), kTailByte, size_);
    std::memcpy(memory_.data(), &value, std::min<size_t>(size_, sizeof(T)));
    get()->struct_size = size_;
  }
  T* get() const { return static_cast<T*>(memory_.data()); }
  T* operator->() const { return get(); }
  // Whether the bytes behind the known fields and the size are unchanged.
  bool untouched() const {
    const auto* bytes = static_cast<const unsigned char*>(memory_.data());
    for (size_t i = sizeof(T); i < size_; ++i) {
      if (bytes[i] != kTailByte) return false;
    }
    return get()->struct_size == size_;
  }

 private:
  static uint32_t size_in(Shape shape) {
    if (shape == Shape::kMinor0) return kMinor0Size<T>;
    return static_cast<uint32_t>(sizeof(T)) + (shape == Shape::kLonger ? kTail : 0);
  }

  uint32_t size_;
  GuardedMemory memory_;
};

// Starts an agent with structs of such shapes, and exchanges messages with the other ranks. Each failure is a finding
// and leaves the body.
class BareAgent {
 public:
  BareAgent(Rank& rank, const bp_backend& backend, std::string space, int32_t rank_in_group, int32_t world_size,
            Shape host_shape, uint32_t host_minor, Shape shape);
  ~BareAgent();
  BareAgent(const BareAgent&) = delete;
  BareAgent& operator=(const BareAgent&) = delete;

  // Sends around the ring, with and without BP_OP_SYNC, and runs each native collective.
  void send_and_receive();
  // Ends as the core does: destroys the options before the agent.
  void close();

 private:
  bp_error fresh_error() const;
  void construct(const InitArguments& arguments);
  void start(const InitArguments& arguments);
  void finish(bp_work* work, int32_t status, const Shaped<bp_error>& error, const std::string& what);
  void exchange(uint64_t flags);
  void collective(const bp_capability& capability, uint64_t seq);
  void require(int32_t status, const Shaped<bp_error>& error, const std::string& what);

  Rank& rank_;
  const bp_backend& backend_;
  const std::string space_;
  const int32_t own_;
  const int32_t size_;
  const Shape shape_;
  Host host_;
  Shaped<bp_host> table_;
  bp_options* options_ = nullptr;
  Shaped<bp_agent> agent_;
  const bp_process_group_api* api_ = nullptr;
  std::shared_ptr<MirrorMemory> mirrors_;  // null: buffers are in memory of the host
};

}  // namespace backplane::conformance::load
