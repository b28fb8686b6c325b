// SPDX-License-Identifier: Apache-2.0
//
// Carries the frames of an sdk::Messenger over Sockets. The sender sends them; this class receives those of the others,
// along the connections that they dial, and notes which ranks have left or are lost.
//
// Nothing here blocks. Guarded by the group's mutex.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "backplane/base/event_fd.hpp"
#include "backplane/sdk/messenger.hpp"
#include "sender.hpp"
#include "session.hpp"
#include "transport.hpp"

namespace backplane::zmq {

class Messages {
 public:
  // `wake`: raised when libzmq has released the last of a send's buffer. Outlives the sockets.
  Messages(int32_t rank, int32_t world_size, const Settings& settings, const sdk::Host& host, uint64_t token,
           Sockets& sockets, const base::EventFd& wake);

  // Like those of sdk::Messenger. Call sender().send_ready() after each of them, and after a cancel.
  std::unique_ptr<sdk::CompletionWork> submit(const bp_op& op);
  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result);
  void drop(bp_message* message) noexcept { messenger_.drop(message); }
  Sender& sender() { return sender_; }

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

  // Dials a peer of sender().unresolved(). `public_key`: of secure sockets.
  void resolve(int32_t rank, const std::string& endpoint, const std::string& public_key);
  // An orderly leave: after sender().goodbye_confirmed(), sends a goodbye to the peers that have dialled this rank.
  void end_goodbye();

 private:
  struct Peer {
    std::optional<sdk::Failure> lost;      // why no messages are exchanged any more
    uint64_t received = 0;                 // messages
    std::optional<uint64_t> leaves_after;  // it sent a goodbye: it leaves after this many messages
    std::string leave_reason;              // the reason in its goodbye
    std::string route;                     // for replies; empty if it has not dialled
  };

  Peer& peer(int32_t rank) { return peers_[rank]; }
  void on_message(Inbound& message);
  void on_frame(const Header& header, Inbound& message);
  void on_reply(Inbound& message);
  void on_goodbye(const Header& header, const Inbound& message);
  void reject(const char* what);

  void leave_if_complete(int32_t rank);
  void lose(int32_t rank, const sdk::Failure& why);
  void lose_suspects(TimePoint now);

  const Session session_;
  const sdk::Host host_;
  Sockets& sockets_;
  Sender sender_;

  std::unordered_map<int32_t, Peer> peers_;  // those in use
  std::map<int32_t, TimePoint> suspects_;    // their connection is broken: lost at this time unless a goodbye arrives
  base::LogLimit rejected_;
  std::optional<sdk::Failure> aborted_;
  sdk::Messenger messenger_;  // last: its callback uses sender_
};

}  // namespace backplane::zmq
