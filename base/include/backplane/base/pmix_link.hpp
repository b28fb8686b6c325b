// SPDX-License-Identifier: Apache-2.0
//
// The messages between a launcher and its PMIx server, the program backplane-pmix-server, over a socket.
//
// To the server: "name", "node", "ranks" (per node), one "host" per node, "start"; then "ended" with each rank whose
// process has ended. To the launcher: one "directory" for each directory of temporary files; for each rank of the node
// its "variable"s and "rank" with its local number; then "ready", or "error" with the reason, as the last message.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "descriptor.hpp"

namespace backplane::base {

// One end of the socket. Used by one thread at a time.
class PmixLink {
 public:
  struct Message {
    std::string kind;  // a word
    std::string text;  // any bytes
  };
  // The other end has closed the socket.
  class Closed : public std::runtime_error {
   public:
    Closed() : std::runtime_error("the connection has ended") {}
  };

  explicit PmixLink(Descriptor socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

  // Blocks while the socket is full, at most for its SO_SNDTIMEO. Throws Closed, also after that time.
  void send(const Message& message) {
    const std::string bytes = message.kind + " " + std::to_string(message.text.size()) + "\n" + message.text;
    for (std::string_view rest = bytes; !rest.empty();) {
      const ssize_t sent = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) throw Closed();
      rest.remove_prefix(static_cast<size_t>(sent));
    }
  }

  // Whether receive() returns without reading from the socket.
  bool has_message() const { return message_size() <= input_.size(); }

  // Blocks until a message is complete. Throws Closed.
  Message receive() {
    while (!has_message()) read();
    return take();
  }

  // Reads what has arrived; blocks until something has. Throws Closed.
  void read() {
    std::array<char, 65536> bytes;
    const ssize_t size = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (size < 0 && errno == EINTR) return;
    if (size <= 0) throw Closed();
    input_.append(bytes.data(), static_cast<size_t>(size));
  }

 private:
  // Bytes of the first message; npos while its first line is incomplete.
  size_t message_size() const {
    const size_t line = input_.find('\n');
    const size_t space = input_.find(' ');
    if (line == std::string::npos || space > line) return std::string::npos;
    size_t size = 0;
    std::from_chars(input_.data() + space + 1, input_.data() + line, size);
    return line + 1 + size;
  }

  Message take() {
    const size_t size = message_size();
    const size_t line = input_.find('\n');
    Message message = {input_.substr(0, input_.find(' ')), input_.substr(line + 1, size - line - 1)};
    input_.erase(0, size);
    return message;
  }

  Descriptor socket_;
  std::string input_;
};

}  // namespace backplane::base
