// SPDX-License-Identifier: Apache-2.0
#include "curve.hpp"

#include <string.h>

#include <array>
#include <charconv>
#include <vector>

#include "backplane/sdk/sdk.hpp"
#include "transport.hpp"

namespace backplane::zmq {
namespace {

constexpr const char* kEndpoint = "inproc://zeromq.zap.01";  // RFC 27
constexpr const char* kDomain = "backplane";
constexpr size_t kRawKeySize = 32;

// The key or token in the frames of a request, "" if they are malformed. The frames: version, request id, domain,
// address, routing id, mechanism, then the key, or a name and the token.
std::string credential(const std::vector<std::string>& frames) {
  if (frames.size() < 7 || frames[0] != "1.0" || frames[2] != kDomain) return "";
  if (frames[5] == "PLAIN" && frames.size() == 8) return frames[7];
  if (frames[5] != "CURVE" || frames[6].size() != kRawKeySize) return "";
  std::array<char, kCurveKeySize + 1> text{};
  zmq_z85_encode(text.data(), reinterpret_cast<const uint8_t*>(frames[6].data()), kRawKeySize);
  return text.data();
}

}  // namespace

KeyPair make_key_pair() {
  if (zmq_has("curve") == 0) {
    throw sdk::Failure(BP_UNSUPPORTED,
                       "zmq: this libzmq was built without CURVE, and the job has a secret; install one that has it, "
                       "as Debian's does, or choose another backend");
  }
  std::array<char, kCurveKeySize + 1> public_key{};
  std::array<char, kCurveKeySize + 1> private_key{};
  if (zmq_curve_keypair(public_key.data(), private_key.data()) != 0) {
    throw sdk::Failure(BP_RESOURCE, std::string("zmq: cannot make a key pair: ") + zmq_strerror(zmq_errno()));
  }
  KeyPair pair{public_key.data(), private_key.data()};
  ::explicit_bzero(private_key.data(), private_key.size());
  return pair;
}

void erase_key(std::string& key) {
  ::explicit_bzero(key.data(), key.size());
  key.clear();
}

void require_curve(::zmq::socket_t& listening, const KeyPair& own) {
  listening.set(::zmq::sockopt::curve_server, true);
  listening.set(::zmq::sockopt::curve_secretkey, own.private_key);
  listening.set(::zmq::sockopt::zap_domain, std::string(kDomain));
}

void require_token(::zmq::socket_t& listening) {
  listening.set(::zmq::sockopt::plain_server, true);
  listening.set(::zmq::sockopt::zap_domain, std::string(kDomain));
}

ZapHandler::ZapHandler(::zmq::context_t& context) : socket_(context, ::zmq::socket_type::rep) {
  socket_.set(::zmq::sockopt::linger, 0);
  socket_.bind(kEndpoint);
}

int ZapHandler::descriptor() { return socket_.get(::zmq::sockopt::fd); }

const std::optional<std::string>& ZapHandler::pending() {
  const auto now = std::chrono::steady_clock::now();
  while (!pending_ && socket_.handle() != nullptr && now >= empty_at_ + kPause) {
    ::zmq::message_t first;
    if (!zmq::receive(first, socket_)) {
      empty_at_ = now;
      break;
    }
    std::vector<std::string> frames = {first.to_string()};
    bool more = first.more();
    while (more) {
      ::zmq::message_t frame;
      if (!zmq::receive(frame, socket_)) break;
      more = frame.more();
      frames.push_back(frame.to_string());
    }
    request_ = frames.size() > 1 ? frames[1] : "";
    pending_ = credential(frames);
    if (pending_->empty()) answer(-1);
  }
  return pending_;
}

void ZapHandler::answer(int32_t rank) {
  pending_.reset();
  const bool good = rank >= 0;
  const std::array<std::string, 6> frames = {
      "1.0", request_, good ? "200" : "400", good ? "OK" : "no rank of this group", good ? std::to_string(rank) : "",
      ""};
  for (size_t i = 0; i < frames.size(); ++i) {
    const auto flags = i + 1 < frames.size() ? ::zmq::send_flags::sndmore : ::zmq::send_flags::none;
    socket_.send(::zmq::buffer(frames[i]), flags | ::zmq::send_flags::dontwait);
  }
}

void ZapHandler::close() { socket_.close(); }

int32_t ZapHandler::rank_of(const ::zmq::message_t& frame) {
  const char* user = zmq_msg_gets(frame.handle(), "User-Id");
  int32_t rank = -1;
  if (user == nullptr) return rank;
  const char* const end = user + strlen(user);
  const auto parsed = std::from_chars(user, end, rank);
  return parsed.ec == std::errc() && parsed.ptr == end ? rank : -1;
}

}  // namespace backplane::zmq
