// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives over Sockets. Smaller messages travel at once (eager), within a window of bytes per pair of ranks
// that bounds what can pile up unreceived: the smallest are copied, the others lent to libzmq (whole). Others announce
// themselves (request), and when a receive has met them (ready) their pieces go from the sender's buffer into the
// receiver's without another copy (data).
//
// Nothing here blocks. Guarded by the group's mutex.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "matcher.hpp"
#include "operation.hpp"
#include "sockets.hpp"
#include "wire.hpp"

namespace backplane::zmq_plugin {

using TimePoint = std::chrono::steady_clock::time_point;

class Protocol {
 public:
  Protocol(int32_t rank, int32_t world_size, const Settings& settings, const sdk::Host& host, uint64_t token,
           Sockets& sockets, Releases& releases);

  // Start an operation; throw Failure if it cannot be. The result may be done already.
  OperationPtr send(const bp_op& op);
  OperationPtr receive(const bp_op& op);
  // As sdk::ProbeTable's.
  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result);
  void drop(const bp_message* message);
  // Ends an operation with `why`. One whose pieces are in libzmq's hands ends by itself, unless `sever`: then the
  // connection to its peer is given up to get them back, and the operation ends soon after.
  void cancel(const OperationPtr& operation, const sdk::Failure& why, bool sever);
  // Ends everything. What waits for libzmq ends once the sockets are closed.
  void abort(const sdk::Failure& why);
  const std::optional<sdk::Failure>& aborted() const { return aborted_; }

  // Moves on whatever can move. Returns when to call again if nothing happens before; TimePoint::min() for at once:
  // also when `wanted` is done, whoever wanted it should not wait for the rest.
  TimePoint progress(const Operation* wanted = nullptr);

  // The part of progress that must follow send and receive: they may have used up the readiness that announced an
  // answer.
  void take_answers();
  bool has_backlog() const { return !backlog_.empty(); }

  // Peers that are needed but whose endpoint is unknown.
  std::vector<int32_t> unresolved() const;
  // `public_key`: of secure sockets.
  void resolve(int32_t rank, const std::string& endpoint, const std::string& public_key);
  // So that whoever looks up endpoints knows of a new one: called by send and receive.
  void on_unresolved(std::function<void()> notify) { notify_unresolved_ = std::move(notify); }

  // Leaving in order: first tell the peers that got messages from here, until all of them have answered, then the
  // others.
  void begin_goodbye();
  bool goodbye_answered() const;
  void end_goodbye();

 private:
  // What waits for an endpoint, or for room in libzmq: a frame, or the rest of a message.
  struct Outgoing {
    zmq::message_t frame;
    OperationPtr transfer;
    OperationPtr eager_send;  // of that frame, to be done once libzmq has it
  };
  struct Peer {
    bool dialled = false;
    std::optional<sdk::Failure> gone;  // why nothing goes to and fro any more
    std::deque<Outgoing> queue;
    uint64_t credit = 0;                   // eager bytes that may still be sent there
    uint64_t owed = 0;                     // eager bytes from there that were received and not yet credited
    uint64_t sent = 0;                     // messages
    uint64_t received = 0;                 // messages
    std::optional<uint64_t> leaves_after;  // a bye came: nothing follows this many messages
    std::string farewell;                  // its reason
    bool answered = false;                 // it has our bye, and so everything before
    std::string route;                     // how to answer it; empty if it has not dialled
  };

  // A message that was probed, until it is received or dropped.
  struct Held {
    Arrival arrival;
    std::optional<sdk::Failure> lost;  // why it cannot be received any more
    void lose(const sdk::Failure& why);
  };

  Peer& peer(int32_t rank);
  Peer& usable(int32_t rank);  // dials, throws why if it is gone
  OperationPtr start(const bp_op& op, bool sends);
  void take_out(const Operation& send);
  void lend(const OperationPtr& send);
  void send_to_self(const OperationPtr& send);
  OperationPtr receive_probed(const bp_op& op);
  std::list<Held>::iterator find_held(const bp_message* message);
  bool lose_held(const std::function<bool(const Arrival&)>& which, const sdk::Failure& why);
  void settle(const OperationPtr& receive, Arrival arrival);
  void take_bytes(Operation& receive, const Arrival& arrival);
  void repay(int32_t rank, uint64_t size);

  zmq::message_t compose(Peer& to, Header header, const void* body = nullptr, size_t size = 0);
  void post(int32_t rank, zmq::message_t frame, const OperationPtr& eager_send = nullptr);
  void flush(int32_t rank);
  Sent hand_in(int32_t rank, zmq::message_t& frame, const OperationPtr& eager_send);
  Sent stream(int32_t rank, const OperationPtr& send);
  void finish_released();

  void on_message(Inbound& message);
  void on_reply(Inbound& message);
  void dispatch(const Header& header, Inbound& message);
  void on_eager(const Header& header, Inbound& message);
  void on_request(const Header& header);
  void on_ready(const Header& header);
  void on_data(const Header& header, Inbound& message);
  void on_withdraw(const Header& header);
  void on_bye(const Header& header, const Inbound& message);
  void reject(const char* what);

  void leave_if_complete(int32_t rank);
  void lose(int32_t rank, const sdk::Failure& why);
  void lose_suspects(TimePoint now);
  void fail_send(const OperationPtr& send, const sdk::Failure& why);
  void violate(int32_t rank);

  const int32_t rank_;
  const int32_t world_size_;
  const Settings settings_;
  const sdk::Host host_;
  const uint64_t token_;
  Sockets& sockets_;
  Releases& releases_;
  std::function<void()> notify_unresolved_;

  Matcher matcher_;
  std::list<Held> held_;
  std::unordered_map<int32_t, Peer> peers_;    // those in use
  std::map<uint64_t, OperationPtr> sends_;     // those that were not copied, by id, until terminal
  std::map<uint64_t, OperationPtr> receives_;  // rendezvous receives by id, from match to the last byte
  std::map<int32_t, TimePoint> suspects_;      // connection broken, goodbye perhaps on its way: lost from then on
  std::vector<int32_t> backlog_;               // peers whose queue waits for room
  uint64_t next_id_ = 1;
  int32_t gone_ = 0;                         // peers
  std::optional<sdk::Failure> nobody_left_;  // why receives from anybody cannot be
  bool warned_ = false;
  std::optional<sdk::Failure> aborted_;
};

}  // namespace backplane::zmq_plugin
