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
// A client that does not read its answers is not listened to any more, until it has.
constexpr size_t kMaxOutgoingBytes = kMaxValueSize;
constexpr const char* kNonsense = "it sent what makes no sense";

}  // namespace

Session::Session(SessionOwner& owner, ClientId id, Tcp::socket socket)
    : owner_(owner), id_(id), socket_(std::move(socket)) {}

void Session::start() {
  tune(socket_);
  hello_timer_.emplace(socket_.get_executor(), kHelloTime);
  hello_timer_->async_wait([self = shared_from_this()](const ErrorCode& error) {
    if (!error && !self->greeted_) self->close("it did not introduce itself");
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

bool Session::speaks() const {
  ErrorCode error;
  return socket_.available(error) > 0 && !error;
}

void Session::read_size() {
  if (closed_ || reading_ || outgoing_bytes_ > kMaxOutgoingBytes) return;
  reading_ = true;
  asio::async_read(socket_, asio::buffer(size_), [self = shared_from_this()](const ErrorCode& error, size_t) {
    if (error) return self->lose(error);
    const size_t size = decode_size(self->size_.data());
    const size_t most = (self->greeted_ ? kMaxFrameSize : kMaxHelloSize) + (self->opener_ ? kSealBytes : 0);
    if (size == 0 || size > most) return self->close(kNonsense);
    self->hear_now();
    self->read_body(size);
  });
}

void Session::read_body(size_t size) {
  try {
    body_.resize(size);
  } catch (const std::bad_alloc&) {
    return close("the store has no memory for what it says");
  }
  asio::async_read(socket_, asio::buffer(body_), transfer_frame(0, [this] { hear_now(); }),
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
    if (proven_) return give_up();
    return refuse(owner_.on_wrong_secret(*this));
  }
  if (!greeted_) return take_hello();
  auto request = decode_request(std::exchange(body_, std::string()));
  if (!request) return give_up();
  owner_.on_request(*this, std::move(*request));
  return true;
}

bool Session::give_up() {
  close(kNonsense);
  return false;
}

// The keys exist from now on, but nobody has proven anything: the first frame that can be opened does.
bool Session::take_key(const std::string& key) {
  const KeyExchange exchange(KeyExchange::End::kServer);
  const auto keys = exchange.agree(*owner_.secret(), key);
  if (!keys) return give_up();
  body_ = std::string();
  opener_.emplace(keys->to_server);
  sealer_.emplace(keys->to_client);
  send({encode_key_answer(exchange.public_key()), nullptr, true});
  return true;
}

bool Session::take_hello() {
  const auto hello = decode_hello(std::exchange(body_, std::string()));
  if (!hello) return give_up();
  proven_ = opener_.has_value();
  rank_ = hello->rank;
  const Welcome welcome = owner_.on_hello(*this, *hello);
  if (welcome.status != BP_OK) return refuse(welcome);
  greeted_ = true;
  hello_timer_.reset();
  send({encode(welcome), nullptr});
  return true;
}

// It has until the end of its time for introductions to take the answer.
bool Session::refuse(const Welcome& refusal) {
  refused_ = true;
  send({encode(refusal), nullptr, !proven_});
  return false;
}

void Session::answer(uint64_t request, int32_t status, Bytes payload) {
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

// A copy: answers share their payload, and each client has a key of its own.
bool Session::seal(const Outgoing& next) {
  const std::string_view payload = next.payload == nullptr ? std::string_view() : std::string_view(*next.payload);
  try {
    sealed_ = sealer_->seal(std::string_view(next.head).substr(kSizeBytes), payload);
    return true;
  } catch (const std::bad_alloc&) {
    // Later, since whoever sends may be in the middle of a list of clients.
    asio::post(socket_.get_executor(),
               [self = shared_from_this()] { self->close("the store has no memory for an answer"); });
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
  asio::async_write(socket_, buffers, transfer_frame(kSocketBuffers, [this] { hear_now(); }),
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
                      if (!self->refused_) self->read_size();  // in case it had to wait
                    });
}

}  // namespace backplane::core
