// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_session.hpp"

#include <chrono>
#include <utility>

namespace backplane::core {
namespace {

constexpr auto kHelloTime = std::chrono::seconds(5);
// No requests are taken from a client while more replies than this wait for it.
constexpr size_t kMaxQueuedBytes = kMaxValueSize;
constexpr size_t kMaxQueuedFrames = 1024;  // a frame of a few bytes still needs memory

}  // namespace

Session::Session(SessionOwner& owner, ClientId id, Tcp::socket socket)
    : owner_(owner), id_(id), stream_(*this, std::move(socket)), hello_timer_(stream_.executor()) {}

void Session::start() {
  hello_timer_.expires_after(kHelloTime);
  hello_timer_.async_wait([self = shared_from_this()](const ErrorCode& error) {
    if (!error && !self->accepted()) self->close("it sent no Hello in time");
  });
  stream_.read();
}

void Session::close(const std::string& why) {
  if (!stream_.open()) return;
  hello_timer_.cancel();
  stream_.close();
  owner_.on_closed(*this, why);
}

size_t Session::max_frame_size() const {
  return (accepted() ? kMaxFrameSize : kMaxHelloSize) + (opener_ ? kSealBytes : 0);
}

bool Session::takes_frames() const {
  return state_ != State::kRefused && stream_.queued_bytes() <= kMaxQueuedBytes &&
         stream_.queued_frames() <= kMaxQueuedFrames;
}

bool Session::on_unfinished(size_t size) { return !accepted() || owner_.on_unfinished(*this, size); }

void Session::on_frame(std::span<char> frame) {
  owner_.on_finished(*this);
  std::optional<std::string_view> opened = std::string_view(frame.data(), frame.size());
  if (opener_) {
    opened = opener_->open(frame);
    // The first frame that can be opened proves the secret.
    if (!opened && !accepted()) return refuse(owner_.on_wrong_secret(), true);
    if (!opened) return on_malformed();
  } else if (owner_.secret() != nullptr) {
    if (const auto key = decode_key_offer(*opened)) return agree_on_keys(*key);
  }
  if (!accepted()) return take_hello(*opened);
  auto request = decode_request(*opened);
  if (!request) return on_malformed();
  owner_.on_request(*this, std::move(*request));
}

void Session::on_malformed() { close("it sent malformed data"); }

void Session::agree_on_keys(const std::string& client_key) {
  const KeyExchange exchange(KeyExchange::End::kServer);
  const auto keys = exchange.agree(*owner_.secret(), client_key);
  if (!keys) return on_malformed();
  opener_.emplace(keys->to_server);
  stream_.seal_with(Sealer(keys->to_client));
  stream_.send({.head = encode_key_reply(exchange.public_key()), .plain = true});
}

void Session::take_hello(std::string_view frame) {
  const auto hello = decode_hello(frame);
  if (!hello) return on_malformed();
  const bool proven = opener_.has_value();
  const Welcome welcome = owner_.on_hello(*this, *hello, proven);
  if (welcome.status != BP_OK) return refuse(welcome, !proven);
  state_ = State::kAccepted;
  hello_timer_.cancel();
  stream_.send({.head = encode(welcome)});
}

// The connection is closed once the refusal is written, at the latest at the end of kHelloTime.
void Session::refuse(const Welcome& refusal, bool plain) {
  state_ = State::kRefused;
  stream_.send({.head = encode(refusal), .plain = plain});
}

void Session::on_sent() {
  if (state_ != State::kRefused) return stream_.read();
  if (!stream_.sending()) close("it was refused");
}

void Session::reply(uint64_t request, int32_t status, Bytes payload) {
  std::string head = encode_reply_head(request, status, payload == nullptr ? 0 : payload->size());
  stream_.send({.head = std::move(head), .payload = std::move(payload)});
}

void Session::push(const Push& push) { stream_.send({.head = encode(push)}); }

}  // namespace backplane::core
