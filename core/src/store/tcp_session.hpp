// SPDX-License-Identifier: Apache-2.0
//
// The server's end of one connection. Reads frames, first a Hello and then requests, and writes replies. If the job has
// a secret, the client proves it before its Hello is read.
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
#include "store/request_handler.hpp"
#include "store/tcp_address.hpp"
#include "store/wire.hpp"

namespace backplane::core {

class Session;

// The server, as a session sees it. All functions run on the server's thread.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  // The job's secret; null if it has none.
  virtual const Secret* secret() const = 0;
  // Accepts (BP_OK) or refuses a client.
  virtual Welcome on_hello(Session& session, const Hello& hello) = 0;
  // The refusal of a client that could not prove the secret.
  virtual Welcome on_wrong_secret(Session& session) = 0;
  virtual void on_request(Session& session, StoreRequest request) = 0;
  // Once, when the connection is closed by either side.
  virtual void on_closed(Session& session) = 0;
};

// Not synchronised: belongs to the thread that runs the io_context. The owner outlives all handlers.
class Session final : public std::enable_shared_from_this<Session> {
 public:
  Session(SessionOwner& owner, ClientId id, Tcp::socket socket);

  // Waits for the Hello, for a limited time.
  void start();
  void reply(uint64_t request, int32_t status, Bytes payload);
  void push(const Push& push);
  // `why` ends the notice "rank 3 is lost: ...".
  void close(const std::string& why);

  ClientId id() const { return id_; }
  // Whether its Hello was accepted.
  bool accepted() const { return accepted_; }
  // Whether frames are still to be sent.
  bool sending() const { return !outgoing_.empty(); }
  // Whether it has proven the secret.
  bool proven() const { return proven_; }
  // From its Hello; -1: no rank.
  int32_t rank() const { return rank_; }
  // "10.0.0.2:40312", empty if it is disconnected.
  std::string remote_address() const;
  // Why it was closed.
  const std::string& why_closed() const { return why_closed_; }

  // When a byte was last received from or accepted by the client. `touch` sets it.
  using Time = std::chrono::steady_clock::time_point;
  Time last_activity() const { return last_activity_; }
  void touch(Time now) { last_activity_ = now; }
  // Whether received bytes are still to be read.
  bool has_unread() const;

 private:
  struct Outgoing {
    std::string head;
    Bytes payload;       // may be null
    bool plain = false;  // sent unsealed
    size_t size() const { return head.size() + (payload == nullptr ? 0 : payload->size()); }
  };

  void read_size();
  void read_body(size_t size);
  void lose(const ErrorCode& error);
  void touch_now() { last_activity_ = std::chrono::steady_clock::now(); }
  // False: no more frames of this client are read.
  bool take_frame();
  bool take_key(const std::string& key);
  bool take_hello();
  bool refuse(const Welcome& refusal);
  bool close_malformed();
  void send(Outgoing outgoing);
  bool seal(const Outgoing& next);
  void write_next();

  SessionOwner& owner_;
  const ClientId id_;
  Tcp::socket socket_;
  std::optional<boost::asio::steady_timer> hello_timer_;
  std::optional<Opener> opener_;  // after the key agreement
  std::optional<Sealer> sealer_;
  bool proven_ = false;
  bool accepted_ = false;
  bool closed_ = false;
  bool refused_ = false;  // close when the refusal is written
  bool reading_ = false;
  int32_t rank_ = -1;
  std::string why_closed_;
  Time last_activity_ = std::chrono::steady_clock::now();
  std::array<char, kSizeBytes> size_{};
  std::string body_;  // empty between frames, to save memory
  std::deque<Outgoing> outgoing_;
  size_t outgoing_bytes_ = 0;
  std::string sealed_;  // the frame that is being written, if frames are sealed
};

}  // namespace backplane::core
