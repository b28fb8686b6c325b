// SPDX-License-Identifier: Apache-2.0
//
// Messages as the core holds them: what came, and what is to go out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backplane/abi/ext/rpc.h"
#include "backplane/rpc.h"
#include "handle.hpp"

namespace backplane::core::rpc {

class Ref;

// The bytes of a message's buffers.
inline uint64_t sum_of(const std::vector<bp_buffer>& buffers) {
  uint64_t bytes = 0;
  for (const bp_buffer& buffer : buffers) bytes += buffer.count;
  return bytes;
}

// A received message without its header. Owns it until it goes.
class Parcel {
 public:
  explicit Parcel(const bp_rpc_message& message)
      : message_(known_part(message)), buffers_(message.buffers, message.buffers + message.buffer_count) {}
  ~Parcel() { give_back(); }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  // All of it, until what follows the header is set. If that is little, it is copied, and the message given back to the
  // transport on the thread that has brought it: memory that goes from thread to thread is what malloc is slow with.
  std::string_view bytes() const { return {static_cast<const char*>(message_.payload), message_.payload_size}; }
  std::string_view payload() const { return payload_; }
  void set_payload(std::string_view payload) {
    payload_ = payload;
    if (!buffers_.empty() || payload.size() > kLittle) return;
    copy_.assign(payload);
    payload_ = copy_;
    give_back();
  }
  const std::vector<bp_buffer>& buffers() const { return buffers_; }
  uint64_t size() const { return message_.payload_size + sum_of(buffers_); }
  uint64_t content_bytes() const { return payload_.size() + sum_of(buffers_); }
  std::vector<std::shared_ptr<Ref>>& refs() { return refs_; }

 private:
  // A shorter struct is an older agent's.
  static bp_rpc_message known_part(const bp_rpc_message& given) {
    bp_rpc_message known = {};
    std::memcpy(&known, &given, std::min<size_t>(given.struct_size, sizeof(known)));
    return known;
  }

  void give_back() {
    if (message_.release != nullptr) std::exchange(message_.release, nullptr)(message_.owner);
  }

  static constexpr size_t kLittle = 256;

  bp_rpc_message message_;
  const std::vector<bp_buffer> buffers_;
  std::string_view payload_;
  std::string copy_;
  std::vector<std::shared_ptr<Ref>> refs_;
};

// What somebody wants to send; `owner`, if there are buffers, lets go of them.
struct Content {
  std::string payload;
  std::vector<bp_buffer> buffers;
  std::vector<std::shared_ptr<Ref>> refs;
  std::shared_ptr<void> owner;

  uint64_t bytes() const { return payload.size() + sum_of(buffers); }
};

// Takes over what the C API was given.
Content take_content(const bp_rpc_content& given);

// A value with its destroy and encode functions, as one object.
class Value {
 public:
  explicit Value(const bp_rpc_value& value) : value_(value) {}
  ~Value() {
    if (value_.destroy != nullptr) value_.destroy(value_.object);
  }
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;

  void* object() const { return value_.object; }
  // Keeps the value alive until its buffers are sent. `last_reference`: nobody else has it. Throws core::Error.
  static Content encode(const std::shared_ptr<Value>& value, bool last_reference);

 private:
  const bp_rpc_value value_;
};

}  // namespace backplane::core::rpc

struct bp_rpc_payload : backplane::core::Handle<bp_rpc_payload> {
  std::shared_ptr<backplane::core::rpc::Parcel> parcel;
};
struct bp_rref : backplane::core::Handle<bp_rref> {
  std::shared_ptr<backplane::core::rpc::Ref> ref;
};
