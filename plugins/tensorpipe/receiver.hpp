// SPDX-License-Identifier: Apache-2.0
//
// Receives messages on the pipes and express connections that other workers have opened, on TensorPipe's threads. If a
// pipe or the express connection beside it breaks, their sender is reported lost once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "backplane/sdk/rpc.hpp"
#include "endpoint.hpp"
#include "goodbyes.hpp"
#include "staging.hpp"
#include "transport.hpp"
#include "wire.hpp"

namespace backplane::tensorpipe {

class Receiver {
 public:
  // `token`: of this worker. `is_stopped`: the agent has ended. All references outlive this object.
  Receiver(const sdk::Context& context, const Token& token, std::shared_ptr<sdk::BlockPool> memory, Staging& staging,
           const std::atomic<bool>& is_stopped);

  // Begins to read.
  void add(const Pipe& pipe);
  void add(const Express& express);
  // Releases pipes and messages. Call once no callback can run any more.
  void clear();

 private:
  // State of a pipe that is read, used by its callbacks, which TensorPipe runs one at a time. The counters are also
  // decremented by the threads that copy to devices, after delivery.
  struct IncomingPipe {
    int32_t from = -1;              // sender of the last message, -1 if there was none
    std::atomic<int> arriving = 0;  // messages that are being received, delivered in order
    std::atomic<int> copying = 0;   // of these, messages that are being copied to devices, or wait behind such
    uint64_t express = 0;           // number of the sender's express connection beside this pipe
  };
  struct Source {
    DeferredGoodbyes goodbyes;
    uint64_t lost = 0;  // its pipes and express connections up to this number are known to be lost
  };

  Source& source(int32_t rank) { return sources_[static_cast<size_t>(rank)]; }
  std::unique_ptr<IncomingMessage> parse(::tensorpipe::Descriptor descriptor);
  void read(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming);
  void take(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming, std::unique_ptr<IncomingMessage> received);
  void place(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming,
             std::unique_ptr<IncomingMessage> received);
  void deliver(const Pipe& pipe, std::unique_ptr<IncomingMessage> received);
  void hand_over(const Pipe& pipe, std::unique_ptr<IncomingMessage> received);
  void hand_over(std::vector<Goodbye> goodbyes);
  void drop(const Pipe& pipe, int32_t from, uint64_t express, const sdk::Failure& why);
  void report_loss(int32_t from, uint64_t express, const sdk::Failure& why);

  void read_express(const Express& express, const std::shared_ptr<IncomingPipe>& incoming);
  void count_express(const IncomingPipe& incoming);
  void drop_express(const Express& express, const IncomingPipe& incoming, const sdk::Failure& why);

  const sdk::RpcHost core_;
  const sdk::Host host_;
  base::LogLimit dropped_;  // messages
  const Token token_;
  const std::shared_ptr<sdk::BlockPool> memory_;
  Staging& staging_;
  const std::atomic<bool>& is_stopped_;

  // Guards the fields below. Never held while TensorPipe is called or one of its objects is destroyed: both may run
  // callbacks on this thread.
  std::mutex mutex_;
  std::set<Pipe> pipes_;
  std::set<Express> express_;
  std::vector<Source> sources_;  // by rank
};

}  // namespace backplane::tensorpipe
