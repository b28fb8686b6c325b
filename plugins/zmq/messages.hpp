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

#include "backplane/base/event_fd.hpp"
#include "backplane/sdk/messenger.hpp"
#include "transport.hpp"
#include "wire.hpp"

namespace backplane::zmq {

class Messages {
 public:
  // `wake`: raised when libzmq has released the last of a send's buffer. Outlives the sockets.
  Messages(int32_t rank, int32_t world_size, const Settings& settings, const sdk::Host& host, uint64_t token,
           Sockets& sockets, const base::EventFd& wake);

  // Like those of sdk::Messenger. Call send_ready after each of them, and after a cancel.
  std::unique_ptr<sdk::CompletionWork> submit(const bp_op& op);
  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result);
  void drop(bp_message* message) noexcept { messenger_.drop(message); }
  // Hands the frames that the messenger has to libzmq, as far as there is room.
  void send_ready();

  // Ends the connection to a rank, so that libzmq releases the buffers of messages on their way to it.
  void close_connection(int32_t rank, const std::string& why);
  // Fails all operations. A send whose buffer libzmq holds ends once the sockets are closed.
  void abort(const sdk::Failure& why);
  const std::optional<sdk::Failure>& aborted() const { return aborted_; }

  // Progresses all operations. Returns the latest time of the next call; TimePoint::min() means at once. Returns early
  // when `wanted` (may be null) is done.
  TimePoint progress(const sdk::Completion* wanted = nullptr);

  // Receives replies. Must follow every other call, since each may have consumed the readiness of the descriptors.
  void receive_replies();
  bool has_backlog() const { return !backlog_.empty(); }

  // Peers that are needed but whose address is unknown.
  std::vector<int32_t> unresolved() const;
  // `public_key`: of secure sockets.
  void resolve(int32_t rank, const std::string& endpoint, const std::string& public_key);
  // `notify` is called when there is a new unresolved peer.
  void on_unresolved(std::function<void()> notify) { notify_unresolved_ = std::move(notify); }

  // An orderly leave: begin_goodbye sends a goodbye to the peers that this rank has dialled. Once all have answered,
  // end_goodbye sends one to the peers that have dialled this rank.
  void begin_goodbye();
  bool goodbye_confirmed() const;
  void end_goodbye();

 private:
  struct Peer {
    bool needed = false;
    bool dialled = false;
    bool introduced = false;               // the hello is sent
    bool is_leaving = false;               // a goodbye follows the last frame
    std::optional<sdk::Failure> lost;      // why no messages are exchanged any more
    uint64_t sent = 0;                     // messages
    uint64_t received = 0;                 // messages
    std::optional<uint64_t> leaves_after;  // it sent a goodbye: it leaves after this many messages
    std::string leave_reason;              // the reason in its goodbye
    bool goodbye_acknowledged = false;     // it has our goodbye and all earlier messages
    std::string route;                     // for replies; empty if it has not dialled
  };

  Peer& peer(int32_t rank) { return peers_[rank]; }
  void note_ready(int32_t rank) noexcept;
  void connect(int32_t rank);
  Header header(Kind kind, uint64_t value = 0) const;
  ::zmq::message_t compose(const Header& header, const void* body = nullptr, size_t size = 0) const;
  void send_to(int32_t rank);
  void send_frame(int32_t rank);

  void on_message(Inbound& message);
  void on_frame(const Header& header, Inbound& message);
  void on_reply(Inbound& message);
  void on_goodbye(const Header& header, const Inbound& message);
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
  const base::EventFd& wake_;
  std::function<void()> notify_unresolved_;

  std::unordered_map<int32_t, Peer> peers_;  // those in use
  std::vector<int32_t> ready_;               // ranks that the messenger has a frame for
  bool has_more_ready_ = false;              // there was no memory to note another one
  std::vector<int32_t> backlog_;             // ranks whose frames wait for room in libzmq
  std::map<int32_t, TimePoint> suspects_;    // their connection is broken: lost at this time unless a goodbye arrives
  base::LogLimit rejected_;
  std::optional<sdk::Failure> aborted_;
  sdk::Messenger messenger_;  // last: its callback uses ready_
};

}  // namespace backplane::zmq
