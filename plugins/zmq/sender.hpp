// SPDX-License-Identifier: Apache-2.0
//
// Sends the messenger's frames to other ranks, along the connections that this rank dials. Each connection begins with
// a hello and ends with a goodbye. Data up to 64 KiB is copied behind its header. Larger data stays in the sender's
// buffer, which libzmq reads.
//
// Nothing here blocks. Guarded by the group's mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backplane/base/event_fd.hpp"
#include "backplane/sdk/messenger.hpp"
#include "session.hpp"
#include "transport.hpp"

namespace backplane::zmq {

class Sender {
 public:
  // `wake`: raised when libzmq has released the last of a send's buffer. All references outlive this object.
  Sender(const Session& session, Sockets& sockets, sdk::Messenger& messenger, const base::EventFd& wake)
      : session_(session), sockets_(sockets), messenger_(messenger), wake_(wake) {}

  // Peers that are needed but whose address is unknown. `notify` is called when there is a new one.
  std::vector<int32_t> unresolved() const;
  void on_unresolved(std::function<void()> notify) { notify_unresolved_ = std::move(notify); }
  // The peer is needed.
  void connect(int32_t rank);
  // Dials a peer whose address is known by now. Returns false if the endpoint or the key is malformed.
  bool dial(int32_t rank, const std::string& endpoint, const std::string& public_key);
  // Nothing is sent to the rank any more.
  void close(int32_t rank) { peers_[rank].is_closed = true; }
  void close_all();

  // The messenger has a frame for this rank.
  void note_ready(int32_t rank) noexcept;
  // Hands the frames that the messenger has to libzmq, as far as there is room.
  void send_ready();
  // The same for frames that waited for room.
  void retry();
  bool has_backlog() const { return !backlog_.empty(); }
  uint64_t sent(int32_t rank) { return peers_[rank].sent; }  // messages

  // Sends a goodbye to the peers that this rank has dialled. `confirmed`: all of them have answered or are closed.
  void begin_goodbye();
  void confirm_goodbye(int32_t rank) { peers_[rank].goodbye_acknowledged = true; }
  bool goodbye_confirmed() const;

 private:
  struct Peer {
    bool needed = false;
    bool dialled = false;
    bool introduced = false;            // the hello is sent
    bool is_leaving = false;            // a goodbye follows the last frame
    bool goodbye_acknowledged = false;  // it has our goodbye and all earlier messages
    bool is_closed = false;
    uint64_t sent = 0;  // messages
  };

  void send_to(int32_t rank);
  void send_frame(int32_t rank);

  const Session session_;
  Sockets& sockets_;
  sdk::Messenger& messenger_;
  const base::EventFd& wake_;
  std::function<void()> notify_unresolved_;
  std::unordered_map<int32_t, Peer> peers_;  // those in use
  std::vector<int32_t> ready_;               // ranks that the messenger has a frame for
  bool has_more_ready_ = false;              // there was no memory to note another one
  std::vector<int32_t> backlog_;             // ranks whose frames wait for room in libzmq
};

}  // namespace backplane::zmq
