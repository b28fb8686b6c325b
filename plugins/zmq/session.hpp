// SPDX-License-Identifier: Apache-2.0
//
// Composes and parses the messages of one session: those that carry its token.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <zmq.hpp>

#include "wire.hpp"

namespace backplane::zmq {

struct Session {
  int32_t rank = 0;  // this one
  int32_t world_size = 1;
  uint64_t token = 0;

  Header header(Kind kind, uint64_t value = 0) const {
    Header made;
    made.kind = kind;
    made.source = rank;
    made.token = token;
    made.value = value;
    return made;
  }
  // A header with text behind it.
  ::zmq::message_t compose(Kind kind, uint64_t value = 0, std::string_view text = {}) const {
    const Header front = header(kind, value);
    ::zmq::message_t frame(sizeof front + text.size());
    std::memcpy(frame.data(), &front, sizeof front);
    if (!text.empty()) std::memcpy(frame.data<std::byte>() + sizeof front, text.data(), text.size());
    return frame;
  }
  // The header of a message of this session from another rank.
  std::optional<Header> parse(const ::zmq::message_t& frame) const {
    return zmq::parse(frame.data<std::byte>(), frame.size(), token, world_size);
  }
};

}  // namespace backplane::zmq
