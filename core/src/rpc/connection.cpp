// SPDX-License-Identifier: Apache-2.0
#include "rpc/connection.hpp"

#include <string>
#include <utility>
#include <vector>

namespace backplane::core::rpc {
namespace {

// Keeps the bytes and buffers of a message valid until the transport releases it.
struct Package {
  std::string bytes;
  std::shared_ptr<void> owner;
};

// The message of a worker to itself: a copy, because its receiver may write to the buffers.
struct Copy {
  std::string bytes;
  std::vector<std::vector<std::byte>> buffers;
};

}  // namespace

// Keeps the transport from being destroyed. Throws BP_CANCELLED if there is none.
class Connection::Use {
 public:
  explicit Use(Connection* connection) : connection_(*connection) {
    const std::lock_guard lock(connection_.mutex_);
    if (connection_.closed_ || !connection_.transport_) {
      fail(BP_CANCELLED, "this worker has left, or has not joined yet");
    }
    ++connection_.users_;
  }
  ~Use() {
    const std::lock_guard lock(connection_.mutex_);
    if (--connection_.users_ == 0) connection_.unused_.notify_all();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  Connection& connection_;
};

void Connection::open(std::unique_ptr<Transport> transport) {
  const std::lock_guard lock(mutex_);
  transport_ = std::move(transport);
}

void Connection::send(int32_t to, const Header& header, Content content, uint64_t id, int64_t timeout_ns) {
  auto package = std::make_unique<Package>();
  package->bytes = encode(header, content.payload.size());
  package->bytes += content.payload;
  package->owner = std::move(content.owner);
  const uint64_t size = package->bytes.size() + total_size(content.buffers);
  const Use use(this);
  context_.peers.require_size(to, size);
  context_.metrics.peers[static_cast<size_t>(to)].bytes_sent.fetch_add(size, std::memory_order_relaxed);
  bp_rpc_message message = {};
  message.struct_size = sizeof(bp_rpc_message);
  message.buffer_count = static_cast<uint32_t>(content.buffers.size());
  message.id = id;
  message.payload = package->bytes.data();
  message.payload_size = package->bytes.size();
  message.buffers = content.buffers.data();
  message.release = [](void* owner) { delete static_cast<Package*>(owner); };
  message.owner = package.release();
  if (to == context_.peers.own_rank()) return loop_back(message);
  transport_->send(to, message, timeout_ns);
}

void Connection::loop_back(const bp_rpc_message& message) {
  auto copy = std::make_unique<Copy>();
  copy->bytes.assign(static_cast<const char*>(message.payload), message.payload_size);
  std::vector<bp_buffer> buffers(message.buffers, message.buffers + message.buffer_count);
  for (bp_buffer& buffer : buffers) {
    if (buffer.memory != BP_HOST) {
      message.release(message.owner);
      fail(BP_UNSUPPORTED,
           "a worker's calls of its own functions carry host memory only; copy arrays of devices there");
    }
    const auto* const data = static_cast<const std::byte*>(buffer.data);
    buffer.data = copy->buffers.emplace_back(data, data + buffer.count).data();
  }
  message.release(message.owner);
  bp_rpc_message same = message;
  same.payload = copy->bytes.data();
  same.buffers = buffers.data();
  same.release = [](void* owner) { delete static_cast<Copy*>(owner); };
  same.owner = copy.release();
  sink_.received(context_.peers.own_rank(), same);
}

void Connection::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void Connection::abort(const Error& why) {
  if (transport_) transport_->abort(why);  // only destroy() changes it, which the same thread calls later
}

void Connection::destroy() {
  std::unique_ptr<Transport> transport;
  std::unique_lock lock(mutex_);
  unused_.wait(lock, [this] { return users_ == 0; });
  transport = std::move(transport_);
  lock.unlock();
}

}  // namespace backplane::core::rpc
