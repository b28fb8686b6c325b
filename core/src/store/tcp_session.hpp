// SPDX-License-Identifier: Apache-2.0
//
// The server's end of one connection: reads frames, first a Hello and then requests, and writes answers. Where the job
// has a secret, the client proves it before its Hello is read.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "security/handshake.hpp"
#include "store/board.hpp"
#include "store/tcp_address.hpp"
#include "store/wire.hpp"

namespace backplane::core {

class Session;

// What a session asks of its server. All runs on the server's thread.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  // The job's secret; null if it has none.
  virtual const Secret* secret() const = 0;
  // Whether to take this client in.
  virtual Welcome on_hello(Session& session, const Hello& hello) = 0;
  // What to tell a client that could not prove the secret.
  virtual Welcome on_wrong_secret(Session& session) = 0;
  virtual void on_request(Session& session, StoreRequest request) = 0;
  // Once, when the connection is over: for whatever reason, from whichever side.
  virtual void on_closed(Session& session) = 0;
};

// Not synchronised: belongs to the thread that runs the io_context. The owner outlives all handlers.
class Session final : public std::enable_shared_from_this<Session> {
 public:
  Session(SessionOwner& owner, ClientId id, Tcp::socket socket);

  // Waits for the Hello, though not for long.
  void start();
  void answer(uint64_t request, int32_t status, Bytes payload);
  void push(const Push& push);
  // `why` ends the sentence "rank 3 is lost: ...".
  void close(const std::string& why);

  ClientId id() const { return id_; }
  // Has it said Hello and been taken in?
  bool greeted() const { return greeted_; }
  // Is there anything that has not left yet?
  bool sending() const { return !outgoing_.empty(); }
  // Has it proven the secret?
  bool proven() const { return proven_; }
  // From its Hello: -1 if it is no rank.
  int32_t rank() const { return rank_; }
  // "10.0.0.2:40312", empty if it is gone.
  std::string remote_address() const;
  // Why it was closed.
  const std::string& why_closed() const { return why_closed_; }

  // When a byte came or was taken by the client for the last time; counts anew from `now` after hear.
  using Time = std::chrono::steady_clock::time_point;
  Time heard() const { return heard_; }
  void hear(Time now) { heard_ = now; }
  // Is there something to read that this thread has not come to yet?
  bool speaks() const;

 private:
  struct Outgoing {
    std::string head;
    Bytes payload;       // may be null
    bool plain = false;  // not to be sealed, though others are
    size_t size() const { return head.size() + (payload == nullptr ? 0 : payload->size()); }
  };

  void read_size();
  void read_body(size_t size);
  void lose(const ErrorCode& error);
  void hear_now() { heard_ = std::chrono::steady_clock::now(); }
  // Nothing more of this client is read if false.
  bool take_frame();
  bool take_key(const std::string& key);
  bool take_hello();
  bool refuse(const Welcome& refusal);
  bool give_up();
  void send(Outgoing outgoing);
  bool seal(const Outgoing& next);
  void write_next();

  SessionOwner& owner_;
  const ClientId id_;
  Tcp::socket socket_;
  std::optional<boost::asio::steady_timer> hello_timer_;
  std::optional<Opener> opener_;  // once keys are agreed on
  std::optional<Sealer> sealer_;
  bool proven_ = false;
  bool greeted_ = false;
  bool closed_ = false;
  bool refused_ = false;  // to be closed when the refusal is written
  bool reading_ = false;
  int32_t rank_ = -1;
  std::string why_closed_;
  Time heard_ = std::chrono::steady_clock::now();
  std::array<char, kSizeBytes> size_{};
  std::string body_;  // empty between frames, so that an idle client costs nothing
  std::deque<Outgoing> outgoing_;
  size_t outgoing_bytes_ = 0;
  std::string sealed_;  // what is being written, where frames are sealed
};

}  // namespace backplane::core
