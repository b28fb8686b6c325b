// SPDX-License-Identifier: Apache-2.0
#include "store/frame_stream.hpp"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <new>
#include <string_view>
#include <utility>

namespace backplane::core {

namespace asio = boost::asio;

namespace {

constexpr size_t kFirstRead = 4096;  // the bytes of a frame that may arrive before the handler allows its rest
constexpr size_t kNextRead = 65536;
constexpr size_t kSocketBuffers = size_t{16} << 20;

// At the end of the stream: whether the peer has reset the connection. The kernel reports that once, perhaps to a
// write.
bool is_reset(Tcp::socket& socket) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  return ::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_CLOSE;
}

}  // namespace

void FrameStream::read() {
  if (reading_ || !open()) return;
  reading_ = true;
  try {
    if (take_frames()) return wait_readable();
  } catch (const std::bad_alloc&) {
    return handler_.on_read_error(asio::error::no_memory);
  }
  reading_ = false;
}

void FrameStream::wait_readable() {
  socket_.async_wait(Tcp::socket::wait_read, [this, alive = handler_.keep_alive()](const ErrorCode& error) {
    if (!open()) return;
    if (error) return handler_.on_read_error(error);
    receive();
  });
}

void FrameStream::receive() {
  std::array<char, kNextRead> bytes;  // NOLINT(cppcoreguidelines-pro-type-member-init): read_some fills it
  ErrorCode error;
  if (!socket_.non_blocking()) socket_.non_blocking(true, error);
  const size_t size = socket_.read_some(asio::buffer(bytes.data(), frame_begun_ ? kNextRead : kFirstRead), error);
  if (error == asio::error::would_block) return wait_readable();
  if (error == asio::error::eof && !is_shut_down_ && is_reset(socket_)) error = asio::error::connection_reset;
  if (error) return handler_.on_read_error(error);
  last_activity_ = std::chrono::steady_clock::now();
  try {
    incoming_.append(std::string_view(bytes.data(), size));
  } catch (const std::bad_alloc&) {
    return handler_.on_read_error(asio::error::no_memory);
  }
  reading_ = false;
  read();
}

// Takes the frames that have arrived. Returns whether to read more.
bool FrameStream::take_frames() {
  while (frame_begun_ || handler_.takes_frames()) {
    const auto size = incoming_.announced();
    if (!size) {
      incoming_.release_memory();
      return true;
    }
    if (*size == 0 || *size > handler_.max_frame_size()) {
      handler_.on_malformed();
      return false;
    }
    const auto frame = incoming_.take();
    if (!frame) {
      frame_begun_ = handler_.on_unfinished(*size);
      return frame_begun_ && open();
    }
    frame_begun_ = false;
    handler_.on_frame(*frame);
    if (!open()) return false;
  }
  return false;
}

void FrameStream::send(OutgoingFrame frame) {
  if (!open()) return;
  queued_bytes_ += frame.size();
  outgoing_.push_back(std::move(frame));
  if (outgoing_.size() == 1) write_next();
}

void FrameStream::write_next() {
  const OutgoingFrame& next = outgoing_.front();
  const std::string_view payload = next.payload == nullptr ? std::string_view() : std::string_view(*next.payload);
  std::array<asio::const_buffer, 2> buffers{asio::buffer(next.head), asio::buffer(payload)};
  if (sealer_ && !next.plain) {
    try {
      // Seals into a copy: replies share their payload, and each client has its own key.
      sealed_ = sealer_->seal(std::string_view(next.head).substr(kSizeBytes), payload);
    } catch (const std::bad_alloc&) {
      // Posted, because the caller may be iterating over the streams.
      asio::post(socket_.get_executor(), [this, alive = handler_.keep_alive()] {
        if (open()) handler_.on_write_error(asio::error::no_memory);
      });
      return;
    }
    buffers = {asio::buffer(sealed_), asio::const_buffer()};
  }
  const auto progress = [this](const ErrorCode& error, size_t bytes) {
    if (bytes > kSocketBuffers) last_activity_ = std::chrono::steady_clock::now();
    return error ? size_t{0} : kNextRead;
  };
  asio::async_write(socket_, buffers, progress, [this, alive = handler_.keep_alive()](const ErrorCode& error, size_t) {
    sealed_ = std::string();
    if (!open()) return;
    if (error) return handler_.on_write_error(error);
    queued_bytes_ -= outgoing_.front().size();
    outgoing_.pop_front();
    if (sending()) write_next();
    handler_.on_sent();
  });
}

bool FrameStream::discard(uint64_t id) {
  const auto found = std::find_if(outgoing_.begin(), outgoing_.end(), [id](const auto& one) { return one.id == id; });
  if (found == outgoing_.end() || found == outgoing_.begin()) return false;
  queued_bytes_ -= found->size();
  outgoing_.erase(found);
  return true;
}

void FrameStream::shut_down() {
  is_shut_down_ = true;
  ErrorCode ignored;
  socket_.shutdown(Tcp::socket::shutdown_both, ignored);
}

void FrameStream::close() {
  shut_down();
  ErrorCode ignored;
  socket_.close(ignored);
  outgoing_.resize(std::min<size_t>(outgoing_.size(), 1));  // the first may still be referenced by its write
}

std::string FrameStream::remote_address() const {
  ErrorCode error;
  const auto endpoint = socket_.remote_endpoint(error);
  return error ? "" : host_port(endpoint.address().to_string(), endpoint.port());
}

bool FrameStream::has_unread() const {
  ErrorCode error;
  return socket_.available(error) > 0 && !error;
}

}  // namespace backplane::core
