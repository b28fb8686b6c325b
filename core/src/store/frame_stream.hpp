// SPDX-License-Identifier: Apache-2.0
//
// Frames over a connected socket, in both directions. Each end of a TCP store's connection has one.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "security/handshake.hpp"
#include "store/frame_buffer.hpp"
#include "store/table.hpp"
#include "store/tcp_address.hpp"

namespace backplane::core {

// The user of a stream. All functions run on the thread of the socket's io_context.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  // Held by the stream's pending operations. Null if the handler outlives them.
  virtual std::shared_ptr<void> keep_alive() = 0;
  // The largest frame that may come next.
  virtual size_t max_frame_size() const = 0;
  // Whether the next frame may be taken. If not, FrameStream::read continues.
  virtual bool takes_frames() const = 0;
  // A frame of this size has begun to arrive. Returns whether to read the rest now. If not, FrameStream::read
  // continues.
  virtual bool on_unfinished(size_t size) = 0;
  // `frame` is valid, and may be changed, during the call.
  virtual void on_frame(std::span<char> frame) = 0;
  virtual void on_sent() = 0;
  // A frame has no bytes or is too large.
  virtual void on_malformed() = 0;
  // The connection ended, or there is no memory for a frame.
  virtual void on_read_error(const ErrorCode& error) = 0;
  virtual void on_write_error(const ErrorCode& error) = 0;
};

struct OutgoingFrame {
  std::string head;         // the frame, or its beginning
  Bytes payload = nullptr;  // the rest; may be null
  uint64_t id = 0;          // for `discard`
  bool plain = false;       // never sealed
  size_t size() const { return head.size() + (payload == nullptr ? 0 : payload->size()); }
};

// Not synchronised: belongs to the thread that runs the io_context.
class FrameStream {
 public:
  using Time = std::chrono::steady_clock::time_point;

  FrameStream(FrameHandler& handler, Tcp::socket socket) : handler_(handler), socket_(std::move(socket)) {}
  // Shuts the connection down, which closing alone does not if a child made by fork has the socket as well.
  ~FrameStream() { close(); }
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  // Starts or continues to read frames. The handler may call it at any time.
  void read();
  void send(OutgoingFrame frame);
  // Seals the frames that are sent later.
  void seal_with(const Sealer& sealer) { sealer_.emplace(sealer); }
  // Removes the queued frame of this id. False if there is none, or it is being written.
  bool discard(uint64_t id);
  // Ends both directions. Bytes that have arrived can still be read.
  void shut_down();
  void close();

  boost::asio::any_io_executor executor() { return socket_.get_executor(); }
  bool open() const { return socket_.is_open(); }
  bool sending() const { return !outgoing_.empty(); }
  size_t queued_frames() const { return outgoing_.size(); }
  size_t queued_bytes() const { return queued_bytes_; }
  // Bytes that have arrived of the unfinished frame.
  size_t unfinished_bytes() const { return incoming_.size(); }
  // "10.0.0.2:40312", empty if it is disconnected.
  std::string remote_address() const;

  // When a byte was last received from or accepted by the other end. Written bytes count only beyond those that the
  // sockets of both ends can buffer for a suspended process.
  Time last_activity() const { return last_activity_; }
  void touch(Time now) { last_activity_ = now; }
  // Whether received bytes are still to be read.
  bool has_unread() const;

 private:
  void wait_readable();
  void receive();
  bool take_frames();
  void write_next();

  FrameHandler& handler_;
  Tcp::socket socket_;
  FrameBuffer incoming_;
  bool is_shut_down_ = false;
  bool reading_ = false;      // taking frames, or waiting for bytes
  bool frame_begun_ = false;  // the handler has allowed the rest of the unfinished frame
  std::optional<Sealer> sealer_;
  std::deque<OutgoingFrame> outgoing_;  // the first is being written
  size_t queued_bytes_ = 0;
  std::string sealed_;  // the frame that is being written, if frames are sealed
  Time last_activity_ = std::chrono::steady_clock::now();
};

}  // namespace backplane::core
