// SPDX-License-Identifier: Apache-2.0
//
// The content of RPC messages: arguments and results of any type that msgpack-cxx serialises, arrays out of band, and
// references. Decoding runs no code of the peer. Sizes and depth are checked before memory is allocated.
#pragma once

#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <msgpack.hpp>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "backplane/error.hpp"
#include "backplane/rpc.h"
#include "backplane/types.hpp"

namespace backplane::rpc {

// Elements in host memory that are sent without serialisation, and without a copy where the transport allows it. Copies
// share the elements. A function that gets it as an argument has its own copy, which it may write to. The caller must
// not write to the elements until the transport has released them: when the call succeeds, or some time after it timed
// out or was cancelled.
template <Element T>
class Array {
 public:
  using value_type = T;

  Array() = default;
  explicit Array(std::vector<T> elements) {
    auto kept = std::make_shared<std::vector<T>>(std::move(elements));
    data_ = kept->data();
    size_ = kept->size();
    keep_ = std::move(kept);
  }
  // `size` elements at `data`, which `keep` keeps alive until the transport has released them. Without `keep` they must
  // stay alive until the worker has shut down, unless all calls with them succeed.
  Array(T* data, uint64_t size, std::shared_ptr<void> keep = {}) : data_(data), size_(size), keep_(std::move(keep)) {}

  T* data() const { return data_; }
  uint64_t size() const { return size_; }  // elements
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  T& operator[](uint64_t index) const { return data_[index]; }
  const std::shared_ptr<void>& keep() const { return keep_; }

 private:
  T* data_ = nullptr;
  uint64_t size_ = 0;
  std::shared_ptr<void> keep_;
};

// Elements in the memory of a CUDA device, which are sent to the memory of one of the receiver's devices: the one that
// the sender's option device_maps names, else the one that the receiver's device_maps maps to the sender's. Copies
// share the elements.
//
//     rpc::register_function("scale", [](const rpc::DeviceArray<float>& x) { return scaled(x); });
//     rpc::init_rpc("a", {.backend = "tensorpipe?device_maps=b:0=1"});
//     auto y = rpc::rpc_sync<rpc::DeviceArray<float>>("b", "scale", rpc::DeviceArray<float>(x, 1024, 0, keep));
//
// Only TENSORPIPE carries them, between workers that map their devices, through host memory. With other agents, and in
// calls of a worker's own functions, the call ends with Status::kUnsupported; for a device that is not mapped, with
// Status::kInvalid.
//
// Streams: the transport waits for work that the device's default stream got before the call, or before the function
// returned. Work in other streams must have finished. Received elements are complete. A received array has memory of
// its own, which may be written to and is freed with the last copy of the array; work in streams must have finished by
// then. Sent elements must not be written to for as long as those of an Array.
template <Element T>
class DeviceArray {
 public:
  using value_type = T;

  DeviceArray() = default;
  // `size` elements at `data`, in memory of CUDA device `ordinal` of this process, as the CUDA runtime counts them, in
  // its primary context (cudaMalloc, ncclMemAlloc, or cuMemAlloc there). `keep` keeps them alive, as in Array.
  DeviceArray(T* data, uint64_t size, int ordinal, std::shared_ptr<void> keep = {})
      : data_(data), size_(size), ordinal_(ordinal), keep_(std::move(keep)) {}

  T* data() const { return data_; }        // not accessible to the host
  uint64_t size() const { return size_; }  // elements
  Device device() const { return Device::cuda(ordinal_); }
  // For operations of a process group. Valid as long as this array.
  Buffer buffer() const { return Buffer(data_, size_, dtype_of<T>, device()); }
  const std::shared_ptr<void>& keep() const { return keep_; }

 private:
  T* data_ = nullptr;
  uint64_t size_ = 0;
  int ordinal_ = 0;
  std::shared_ptr<void> keep_;
};

// A result of any type that stays on the worker that made it. Only references to it are sent: RRef<Local<T>>.
template <typename T>
class Local {
 public:
  explicit Local(std::shared_ptr<T> object) : object_(std::move(object)) {}
  template <typename... Arguments>
  static Local make(Arguments&&... arguments) {
    return Local(std::make_shared<T>(std::forward<Arguments>(arguments)...));
  }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_.get(); }

 private:
  std::shared_ptr<T> object_;
};

template <typename T>
class RRef;

namespace detail {

using backplane::detail::fail;

using PayloadHandle = std::shared_ptr<bp_rpc_payload>;
inline PayloadHandle own(bp_rpc_payload* received) { return {received, bp_rpc_payload_release}; }

// A type's name as in source code. NULL: no memory.
inline std::unique_ptr<char, decltype(&std::free)> demangled(const std::type_info& type) {
  return {abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr), &std::free};
}

// For error texts, without the default arguments of std::string and std::vector.
template <typename T>
struct TypeName {
  static std::string text() {
    if constexpr (std::is_same_v<T, std::string>) return "std::string";
    const auto name = demangled(typeid(T));
    return name ? name.get() : typeid(T).name();
  }
};
template <typename T>
struct TypeName<std::vector<T>> {
  static std::string text() { return "std::vector<" + TypeName<T>::text() + ">"; }
};

// "an integer": what a peer sent.
inline const char* describe(const msgpack::object& object) {
  switch (object.type) {
    case msgpack::type::NIL:
      return "nothing (nil)";
    case msgpack::type::BOOLEAN:
      return "a boolean";
    case msgpack::type::POSITIVE_INTEGER:
    case msgpack::type::NEGATIVE_INTEGER:
      return "an integer";
    case msgpack::type::FLOAT32:
    case msgpack::type::FLOAT64:
      return "a floating-point number";
    case msgpack::type::STR:
      return "a string";
    case msgpack::type::ARRAY:
      return "a list";
    case msgpack::type::MAP:
      return "a map";
    default:
      return "binary data";
  }
}

// The next value of a received message. The message is parsed first, so that memory is allocated only for elements that
// it contains. Throws Status::kInvalid with the reason why there is no T.
template <typename T>
T unpack(const char* data, size_t size, size_t* offset) {
  if (*offset >= size) fail(Status::kInvalid, "no value was sent");
  msgpack::null_visitor look;
  size_t end = *offset;
  try {
    if (!msgpack::parse(data, size, end, look))
      fail(Status::kInvalid, "the value that was sent is truncated or malformed");
    const msgpack::unpack_limit limit(size, size, size, size, size, 64);
    const auto handle = msgpack::unpack(data, size, *offset, nullptr, nullptr, limit);
    try {
      return handle.get().template as<T>();
    } catch (const msgpack::type_error&) {
      fail(Status::kInvalid, std::string(describe(handle.get())) + " was sent");
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail(Status::kInvalid, std::string("the value that was sent cannot be decoded: ") + e.what());
  }
}

template <typename T>
inline constexpr bool kIsLocal = false;
template <typename T>
inline constexpr bool kIsLocal<Local<T>> = true;

// Builds a message.
class Packer {
 public:
  template <typename T>
  void add(const T& value) {
    static_assert(!kIsLocal<T>, "a Local stays with its owner; send an RRef to it");
    msgpack::pack(payload_, value);
  }
  void add(std::monostate) {}  // the result of a function that returns void
  template <typename T>
  void add(const Array<T>& array) {
    add_buffer(array.data(), array.size() * sizeof(T), array.keep());
  }
  template <typename T>
  void add(const DeviceArray<T>& array) {
    add_buffer(array.data(), array.size() * sizeof(T), array.keep(), array.device());
  }
  template <Element T>
  requires(!std::is_same_v<T, bool>) void add(std::vector<T> elements) { add(Array<T>(std::move(elements))); }
  // Adds a value that stays alive until this is released.
  template <typename T>
  void lend(const T& value) {
    add(value);
  }
  template <Element T>
  requires(!std::is_same_v<T, bool>) void lend(const std::vector<T>& elements) {
    add_buffer(elements.data(), elements.size() * sizeof(T), {});
  }
  template <typename T>
  void add(const RRef<T>& ref) {
    refs_.push_back(ref.get());
    keep(ref.handle());
  }

  // For one call of the C API, which takes ownership of the added values.
  bp_rpc_content content() {
    bp_rpc_content content = {};
    content.struct_size = sizeof(bp_rpc_content);
    fill(&content);
    content.release = [](void* owner) { delete static_cast<Keep*>(owner); };
    content.owner = keep_.release();
    return content;
  }
  // For bp_rpc_value::encode. Payload, buffers and references stay valid until content->release.
  static int32_t hand_over(std::unique_ptr<Packer> packer, bp_rpc_content* content) {
    packer->fill(content);
    content->release = [](void* owner) { delete static_cast<Packer*>(owner); };
    content->owner = packer.release();
    return BP_OK;
  }

 private:
  using Keep = std::vector<std::shared_ptr<void>>;

  void add_buffer(const void* data, uint64_t bytes, const std::shared_ptr<void>& keep, Device device = {}) {
    buffers_.push_back({const_cast<void*>(data), bytes, device.memory, device.ordinal});
    if (keep) this->keep(keep);
  }
  void keep(const std::shared_ptr<void>& owner) {
    if (!keep_) keep_ = std::make_unique<Keep>();
    keep_->push_back(owner);
  }
  void fill(bp_rpc_content* content) {
    content->payload = payload_.data();
    content->payload_size = payload_.size();
    content->buffers = buffers_.data();
    content->buffer_count = static_cast<uint32_t>(buffers_.size());
    content->refs = refs_.data();
    content->ref_count = refs_.size();
  }

  msgpack::sbuffer payload_{64};
  std::vector<bp_buffer> buffers_;
  std::vector<bp_rref*> refs_;
  std::unique_ptr<Keep> keep_;  // NULL: nothing to keep alive
};

// Reads the values of a received message, in the order in which they were added.
class Unpacker {
 public:
  explicit Unpacker(PayloadHandle received) : received_(std::move(received)) {
    payload_ = static_cast<const char*>(bp_rpc_payload_data(received_.get(), &size_));
  }

  template <typename T>
  T take() {
    return Taker<T>::take(this);
  }
  // The same; an error names `subject()`, as "argument 1 of 'f'", its type and `hint()`.
  template <typename T, typename Subject, typename Hint>
  T take(const Subject& subject, const Hint& hint, int peer_rank = -1) {
    try {
      return take<T>();
    } catch (const Error& e) {
      fail(e.status(), subject() + " must be " + TypeName<T>::text() + ": " + e.what() + "; " + hint(), peer_rank);
    }
  }
  // False if values are left: the caller passed more arguments than the function has.
  bool is_at_end() const { return offset_ == size_ && buffer_ == bp_rpc_payload_buffers(received_.get()); }

 private:
  template <typename T>
  struct Taker {
    static T take(Unpacker* from) { return from->take_packed<T>(); }
  };
  template <typename T>
  struct Taker<Array<T>> {
    static Array<T> take(Unpacker* from) {
      const bp_buffer buffer = from->next_buffer(sizeof(T));
      const uint64_t count = buffer.count / sizeof(T);
      if (reinterpret_cast<uintptr_t>(buffer.data) % alignof(T) == 0) {
        return Array<T>(static_cast<T*>(buffer.data), count, from->received_);
      }
      std::vector<T> aligned(count);
      std::memcpy(aligned.data(), buffer.data, buffer.count);
      return Array<T>(std::move(aligned));
    }
  };
  template <typename T>
  struct Taker<DeviceArray<T>> {
    static DeviceArray<T> take(Unpacker* from) {
      const bp_buffer buffer = from->next_buffer(sizeof(T), BP_CUDA);
      return DeviceArray<T>(static_cast<T*>(buffer.data), buffer.count / sizeof(T), buffer.device, from->received_);
    }
  };
  template <Element T>
  requires(!std::is_same_v<T, bool>) struct Taker<std::vector<T>> {
    static std::vector<T> take(Unpacker* from) {
      const bp_buffer buffer = from->next_buffer(sizeof(T));
      std::vector<T> elements(buffer.count / sizeof(T));
      if (buffer.count > 0) std::memcpy(elements.data(), buffer.data, buffer.count);
      return elements;
    }
  };
  template <typename T>
  struct Taker<RRef<T>> {
    static RRef<T> take(Unpacker* from) {
      bp_rref* const ref = bp_rpc_payload_ref(from->received_.get(), from->ref_++);
      if (ref == nullptr) fail(Status::kInvalid, "no reference was sent");
      return RRef<T>(ref);
    }
  };

  template <typename T>
  T take_packed() {
    return unpack<T>(payload_, size_, &offset_);
  }
  // Throws if the buffer is in other memory: the peer may have sent another kind of array.
  bp_buffer next_buffer(size_t element, uint32_t memory = BP_HOST) {
    bp_buffer buffer = {};
    if (buffer_ >= bp_rpc_payload_buffers(received_.get())) {
      fail(Status::kInvalid, "no array was sent");
    }
    bp_rpc_payload_buffer(received_.get(), buffer_++, &buffer);
    if (buffer.memory != memory) {
      fail(Status::kInvalid, memory == BP_HOST ? "an array of a device was sent" : "an array in host memory was sent");
    }
    if (buffer.count % element != 0) {
      fail(Status::kInvalid, "an array of " + std::to_string(buffer.count) + " bytes was sent, no multiple of " +
                                 std::to_string(element) + " bytes");
    }
    return buffer;
  }

  PayloadHandle received_;
  const char* payload_ = nullptr;
  uint64_t size_ = 0;
  size_t offset_ = 0;
  uint32_t buffer_ = 0;
  uint32_t ref_ = 0;
};

}  // namespace detail
}  // namespace backplane::rpc
