// SPDX-License-Identifier: Apache-2.0
//
// The server's end of one connection: the handshake, then requests and replies. If the job has a secret, the client
// proves it before its Hello is read.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "security/handshake.hpp"
#include "store/frame_stream.hpp"
#include "store/request_handler.hpp"
#include "store/wire.hpp"

namespace backplane::core {

class Session;

// The interface of the server for sessions. All functions run on the server's thread.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  // The job's secret; null if it has none.
  virtual const Secret* secret() const = 0;
  // Accepts (BP_OK) or refuses a client. `proven`: it has proven the secret.
  virtual Welcome on_hello(Session& session, const Hello& hello, bool proven) = 0;
  // The refusal of a client that could not prove the secret.
  virtual Welcome on_wrong_secret() = 0;
  // A frame of this size has begun to arrive. Returns whether to read its rest now. If not, `resume` continues.
  virtual bool on_unfinished(Session& session, size_t size) = 0;
  // A frame is complete. Called for each frame, also without an on_unfinished before it.
  virtual void on_finished(Session& session) = 0;
  virtual void on_request(Session& session, StoreRequest request) = 0;
  // What ended the connection, for the notice "rank 3 is lost: ...".
  virtual std::string end_text(const Session& session, const ErrorCode& error) const = 0;
  // Called once, when either side has closed the connection. `why` ends the notice "rank 3 is lost: ...".
  virtual void on_closed(Session& session, const std::string& why) = 0;
};

// Not synchronised: belongs to the thread that runs the io_context. The owner outlives all handlers.
class Session final : public std::enable_shared_from_this<Session>, private FrameHandler {
 public:
  Session(SessionOwner& owner, ClientId id, Tcp::socket socket);

  // Waits for the Hello, for a limited time.
  void start();
  // Reads the rest of an unfinished frame.
  void resume() { stream_.read(); }
  void reply(uint64_t request, int32_t status, Bytes payload);
  void push(const Push& push);
  void close(const std::string& why);

  ClientId id() const { return id_; }
  // Whether its Hello was accepted.
  bool accepted() const { return state_ == State::kAccepted; }
  const FrameStream& stream() const { return stream_; }
  // Whether it is read: its Hello was not refused, and it reads its replies.
  bool takes_frames() const override;
  // Counts as activity of the client.
  void touch(FrameStream::Time now) { stream_.touch(now); }

 private:
  // kRefused: the connection is closed when the refusal is written.
  enum class State { kHandshake, kAccepted, kRefused };

  std::shared_ptr<void> keep_alive() override { return shared_from_this(); }
  size_t max_frame_size() const override;
  bool on_unfinished(size_t size) override;
  void on_frame(std::span<char> frame) override;
  void on_sent() override;
  void on_malformed() override;
  void on_read_error(const ErrorCode& error) override { close(owner_.end_text(*this, error)); }
  void on_write_error(const ErrorCode& error) override { close(owner_.end_text(*this, error)); }

  void agree_on_keys(const std::string& client_key);
  void take_hello(std::string_view frame);
  void refuse(const Welcome& refusal, bool plain);

  SessionOwner& owner_;
  const ClientId id_;
  FrameStream stream_;
  boost::asio::steady_timer hello_timer_;
  std::optional<Opener> opener_;  // after the key agreement
  State state_ = State::kHandshake;
};

}  // namespace backplane::core
