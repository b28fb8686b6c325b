// SPDX-License-Identifier: Apache-2.0
//
// Carries the frames of an sdk::Messenger over Sockets: connections, introductions, departures and losses. Data up to
// 64 KiB is copied behind its header. Larger data stays in the sender's buffer, which libzmq reads.
//
// Nothing here blocks. Guarded by the group's mutex.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backplane/sdk/messenger.hpp"
#include "transport.hpp"
#include "wire.hpp"

namespace backplane::zmq {

class EventFd;
using TimePoint = std::chrono::steady_clock::time_point;

class Messages {
 public:
  // `wake`: raised when libzmq has released the last of a send's buffer. Outlives the sockets.
  Messages(int32_t rank, int32_t world_size, const Settings& settings, const sdk::Host& host, uint64_t token,
           Sockets& sockets, const EventFd& wake);

  // As sdk::Messenger's. Call send_ready after each of them, and after a cancel.
  std::unique_ptr<sdk::CompletionWork> submit(const bp_op& op);
  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result);
  void drop(bp_message* message) noexcept { messenger_.drop(message); }
  // Hands the frames that the messenger has to libzmq, as far as there is room.
  void send_ready();

  // Ends the connection to a rank, so that libzmq releases the buffers of messages on their way to it.
  void sever(int32_t rank, const std::string& why);
  // Fails all operations. A send whose buffer libzmq has ends once the sockets are closed.
  void abort(const sdk::Failure& why);
  const std::optional<sdk::Failure>& aborted() const { return aborted_; }

  // Moves all operations on. Returns when to call again if nothing happens before; TimePoint::min() for at once.
  // Returns early when `wanted` (may be null) is done.
  TimePoint progress(const sdk::Completion* wanted = nullptr);

  // The part of progress that must follow every other call: each may have consumed the readiness of the descriptors.
  void take_answers();
  bool has_backlog() const { return !backlog_.empty(); }

  // Peers that are needed but whose address is unknown.
  std::vector<int32_t> unresolved() const;
  // `public_key`: of secure sockets.
  void resolve(int32_t rank, const std::string& endpoint, const std::string& public_key);
  // `notify` is called when there is a new unresolved peer.
  void on_unresolved(std::function<void()> notify) { notify_unresolved_ = std::move(notify); }

  // Leaving in order: begin_goodbye tells the peers that got messages from here. Once all have answered, end_goodbye
  // tells the others.
  void begin_goodbye();
  bool goodbye_answered() const;
  void end_goodbye();

 private:
  struct Peer {
    bool needed = false;
    bool dialled = false;
    bool introduced = false;               // the hello is sent
    bool is_leaving = false;               // a bye follows the last frame
    std::optional<sdk::Failure> lost;      // why no messages are exchanged any more
    uint64_t sent = 0;                     // messages
    uint64_t received = 0;                 // messages
    std::optional<uint64_t> leaves_after;  // it sent a bye: nothing follows this many messages
    std::string farewell;                  // the reason in its bye
    bool answered = false;                 // it has our bye, and all messages before
    std::string route;                     // for replies; empty if it has not dialled
  };

  Peer& peer(int32_t rank) { return peers_[rank]; }
  void connect(int32_t rank);
  Header header(Kind kind, uint64_t value = 0) const;
  ::zmq::message_t compose(const Header& header, const void* body = nullptr, size_t size = 0) const;
  void send_to(int32_t rank);
  void send_frame(int32_t rank);

  void on_message(Inbound& message);
  void on_frame(const Header& header, Inbound& message);
  void on_reply(Inbound& message);
  void on_bye(const Header& header, const Inbound& message);
  void reject(const char* what);

  void leave_if_complete(int32_t rank);
  void lose(int32_t rank, const sdk::Failure& why);
  void lose_suspects(TimePoint now);

  const int32_t rank_;
  const int32_t world_size_;
  const Settings settings_;
  const sdk::Host host_;
  const uint64_t token_;
  Sockets& sockets_;
  const EventFd& wake_;
  std::function<void()> notify_unresolved_;

  std::unordered_map<int32_t, Peer> peers_;  // those in use
  std::vector<int32_t> ready_;               // ranks that the messenger has a frame for
  std::vector<int32_t> backlog_;             // ranks whose frames wait for room in libzmq
  std::map<int32_t, TimePoint> suspects_;    // connection broken, goodbye perhaps on its way: lost from then on
  bool warned_ = false;
  std::optional<sdk::Failure> aborted_;
  sdk::Messenger messenger_;  // last: its callback uses ready_
};

}  // namespace backplane::zmq
