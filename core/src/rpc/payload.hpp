// SPDX-License-Identifier: Apache-2.0
//
// The content of messages: received (Payload), to be sent (Content), and the values that encode to it (Value).
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

// In bytes.
inline uint64_t total_size(const std::vector<bp_buffer>& buffers) {
  uint64_t bytes = 0;
  for (const bp_buffer& buffer : buffers) bytes += buffer.count;
  return bytes;
}

// A received message without its header. Owns the transport's message, and releases it in the destructor at the latest.
class Payload {
 public:
  explicit Payload(const bp_rpc_message& message)
      : message_(known_part(message)), buffers_(message.buffers, message.buffers + message.buffer_count) {}
  ~Payload() { release(); }
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;

  // With the header; valid until set_data.
  std::string_view message() const { return {static_cast<const char*>(message_.payload), message_.payload_size}; }
  // Without the header.
  std::string_view data() const { return data_; }
  // `data` is the part of message() behind the header. A small message without buffers is copied, and released on the
  // transport's thread: malloc is slow with memory that is freed by another thread than its own.
  void set_data(std::string_view data) {
    data_ = data;
    if (!buffers_.empty() || data.size() > kCopied) return;
    copy_.assign(data);
    data_ = copy_;
    release();
  }
  const std::vector<bp_buffer>& buffers() const { return buffers_; }
  uint64_t message_bytes() const { return message_.payload_size + total_size(buffers_); }
  uint64_t content_bytes() const { return data_.size() + total_size(buffers_); }
  std::vector<std::shared_ptr<Ref>>& refs() { return refs_; }

 private:
  // An older agent's struct is shorter.
  static bp_rpc_message known_part(const bp_rpc_message& given) {
    bp_rpc_message known = {};
    std::memcpy(&known, &given, std::min<size_t>(given.struct_size, sizeof(known)));
    return known;
  }

  void release() {
    if (message_.release != nullptr) std::exchange(message_.release, nullptr)(message_.owner);
  }

  static constexpr size_t kCopied = 256;

  bp_rpc_message message_;
  const std::vector<bp_buffer> buffers_;
  std::string_view data_;
  std::string copy_;
  std::vector<std::shared_ptr<Ref>> refs_;
};

// Content of a message to send. `owner` keeps the buffers valid.
struct Content {
  std::string payload;
  std::vector<bp_buffer> buffers;
  std::vector<std::shared_ptr<Ref>> refs;
  std::shared_ptr<void> owner;

  uint64_t bytes() const { return payload.size() + total_size(buffers); }
};

// Takes ownership of what the C API was given, also if it throws.
Content take_content(const bp_rpc_content& given);

// A value of the program with its destroy and encode functions.
class Value {
 public:
  explicit Value(const bp_rpc_value& value) : value_(value) {}
  ~Value() {
    if (value_.destroy != nullptr) value_.destroy(value_.object);
  }
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;

  void* object() const { return value_.object; }
  // Keeps the value alive until its buffers are sent. `last_reference`: the caller has the only one. Throws
  // core::Error.
  static Content encode(const std::shared_ptr<Value>& value, bool last_reference);

 private:
  const bp_rpc_value value_;
};

}  // namespace backplane::core::rpc

struct bp_rpc_payload : backplane::core::Handle<bp_rpc_payload> {
  std::shared_ptr<backplane::core::rpc::Payload> payload;
};
struct bp_rref : backplane::core::Handle<bp_rref> {
  std::shared_ptr<backplane::core::rpc::Ref> ref;
};
