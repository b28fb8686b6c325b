// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_session.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <new>
#include <utility>

namespace backplane::core {

namespace asio = boost::asio;

namespace {

constexpr auto kHelloTime = std::chrono::seconds(5);
// No requests are read from a client while more replies than this wait for it.
constexpr size_t kMaxOutgoingBytes = kMaxValueSize;
constexpr const char* kMalformedClient = "it sent malformed data";

}  // namespace

Session::Session(SessionOwner& owner, ClientId id, Tcp::socket socket)
    : owner_(owner), id_(id), socket_(std::move(socket)) {}

void Session::start() {
  set_options(socket_);
  hello_timer_.emplace(socket_.get_executor(), kHelloTime);
  hello_timer_->async_wait([self = shared_from_this()](const ErrorCode& error) {
    if (!error && !self->accepted_) self->close("it sent no Hello in time");
  });
  read_size();
}

void Session::close(const std::string& why) {
  if (closed_) return;
  closed_ = true;
  why_closed_ = why;
  hello_timer_.reset();
  ErrorCode ignored;
  socket_.shutdown(Tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  owner_.on_closed(*this);
}

void Session::lose(const ErrorCode& error) { close(end_text(error)); }

std::string Session::remote_address() const {
  ErrorCode error;
  const auto endpoint = socket_.remote_endpoint(error);
  return error ? "" : host_port(endpoint.address().to_string(), endpoint.port());
}

bool Session::has_unread() const {
  ErrorCode error;
  return socket_.available(error) > 0 && !error;
}

void Session::read_size() {
  if (closed_ || reading_ || outgoing_bytes_ > kMaxOutgoingBytes) return;
  reading_ = true;
  asio::async_read(socket_, asio::buffer(size_), [self = shared_from_this()](const ErrorCode& error, size_t) {
    if (error) return self->lose(error);
    const size_t size = decode_size(self->size_.data());
    const size_t most = (self->accepted_ ? kMaxFrameSize : kMaxHelloSize) + (self->opener_ ? kSealBytes : 0);
    if (size == 0 || size > most) return self->close(kMalformedClient);
    self->touch_now();
    self->read_body(size);
  });
}

void Session::read_body(size_t size) {
  try {
    body_.resize(size);
  } catch (const std::bad_alloc&) {
    return close("the store has no memory for its request");
  }
  asio::async_read(socket_, asio::buffer(body_), transfer_frame(0, [this] { touch_now(); }),
                   [self = shared_from_this()](const ErrorCode& error, size_t) {
                     self->reading_ = false;
                     if (error) return self->lose(error);
                     if (self->take_frame()) self->read_size();
                   });
}

bool Session::take_frame() {
  if (!opener_ && owner_.secret() != nullptr) {
    if (const auto key = decode_key_offer(body_)) return take_key(*key);
  } else if (opener_ && !opener_->open(body_)) {
    if (proven_) return close_malformed();
    return refuse(owner_.on_wrong_secret(*this));
  }
  if (!accepted_) return take_hello();
  auto request = decode_request(std::exchange(body_, std::string()));
  if (!request) return close_malformed();
  owner_.on_request(*this, std::move(*request));
  return true;
}

bool Session::close_malformed() {
  close(kMalformedClient);
  return false;
}

// The first frame that can be opened proves the secret.
bool Session::take_key(const std::string& key) {
  const KeyExchange exchange(KeyExchange::End::kServer);
  const auto keys = exchange.agree(*owner_.secret(), key);
  if (!keys) return close_malformed();
  body_ = std::string();
  opener_.emplace(keys->to_server);
  sealer_.emplace(keys->to_client);
  send({encode_key_reply(exchange.public_key()), nullptr, true});
  return true;
}

bool Session::take_hello() {
  const auto hello = decode_hello(std::exchange(body_, std::string()));
  if (!hello) return close_malformed();
  proven_ = opener_.has_value();
  rank_ = hello->rank;
  const Welcome welcome = owner_.on_hello(*this, *hello);
  if (welcome.status != BP_OK) return refuse(welcome);
  accepted_ = true;
  hello_timer_.reset();
  send({encode(welcome), nullptr});
  return true;
}

// The client has until the end of kHelloTime to read the refusal.
bool Session::refuse(const Welcome& refusal) {
  refused_ = true;
  send({encode(refusal), nullptr, !proven_});
  return false;
}

void Session::reply(uint64_t request, int32_t status, Bytes payload) {
  std::string head = encode_reply_head(request, status, payload == nullptr ? 0 : payload->size());
  send({std::move(head), std::move(payload)});
}

void Session::push(const Push& push) { send({encode(push), nullptr}); }

void Session::send(Outgoing outgoing) {
  if (closed_) return;
  outgoing_bytes_ += outgoing.size();
  outgoing_.push_back(std::move(outgoing));
  if (outgoing_.size() == 1) write_next();
}

// Copies: replies share their payload, and each client has its own key.
bool Session::seal(const Outgoing& next) {
  const std::string_view payload = next.payload == nullptr ? std::string_view() : std::string_view(*next.payload);
  try {
    sealed_ = sealer_->seal(std::string_view(next.head).substr(kSizeBytes), payload);
    return true;
  } catch (const std::bad_alloc&) {
    // Posted: the caller may iterate over the sessions.
    asio::post(socket_.get_executor(),
               [self = shared_from_this()] { self->close("the store has no memory for a reply"); });
    return false;
  }
}

void Session::write_next() {
  const Outgoing& next = outgoing_.front();
  std::array<asio::const_buffer, 2> buffers{
      asio::buffer(next.head), next.payload == nullptr ? asio::const_buffer() : asio::buffer(*next.payload)};
  if (sealer_ && !next.plain) {
    if (!seal(next)) return;
    buffers = {asio::buffer(sealed_), asio::const_buffer()};
  }
  asio::async_write(socket_, buffers, transfer_frame(kSocketBuffers, [this] { touch_now(); }),
                    [self = shared_from_this()](const ErrorCode& error, size_t) {
                      if (error) return self->lose(error);
                      self->sealed_ = std::string();
                      self->outgoing_bytes_ -= self->outgoing_.front().size();
                      self->outgoing_.pop_front();
                      if (!self->outgoing_.empty()) {
                        self->write_next();
                      } else if (self->refused_) {
                        return self->close("it was refused");
                      }
                      if (!self->refused_) self->read_size();  // reading may have been paused
                    });
}

}  // namespace backplane::core
