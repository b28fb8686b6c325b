// SPDX-License-Identifier: Apache-2.0
//
// RPC messages over the send and recv of a process group of any backend. One thread receives frames from all peers. A
// few threads wait for the transfers in turn, so a peer that does not respond does not delay the others.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backplane/sdk/block.hpp"
#include "backplane/sdk/layer.hpp"
#include "backplane/sdk/rpc.hpp"
#include "in_progress.hpp"
#include "wire.hpp"

namespace backplane::process_group {

class Agent final : public sdk::RpcAgent {
 public:
  explicit Agent(const sdk::Context& context);
  ~Agent() override;

  void send(int32_t to, sdk::RpcMessage message, int64_t timeout_ns) override;
  void abort(const sdk::Failure& why) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  // Operations in progress; `ended` is called with their failure, or NULL, when all have ended.
  struct Transfer {
    uint64_t number = 0;                  // of an outgoing multipart message; else 0
    std::optional<MessageKey> multipart;  // set for a multipart message
    std::optional<MessageKey> ordered;    // set for a message that must end after all earlier ones and its receipt
    std::vector<std::unique_ptr<sdk::Work>> works;
    std::optional<Clock::time_point> deadline;
    const char* timeout_text = "";                            // its failure at the deadline
    void set_deadline(int64_t timeout_ns, const char* text);  // none if negative
    std::optional<sdk::Failure> failure;                      // the first
    std::function<void(const sdk::Failure* failure)> ended;
  };

  // A received message: the frame with the small parts, and the large parts.
  struct Incoming {
    std::string frame;
    std::vector<std::shared_ptr<std::byte>> large_parts;
    std::vector<std::byte*> parts;
    std::vector<bp_result> results;
  };

  void require_sendable(int32_t to, const sdk::RpcMessage& message) const;  // throws if it cannot be sent there
  std::unique_ptr<sdk::Work> start(uint32_t kind, int32_t peer, uint64_t tag, void* data, uint64_t bytes,
                                   bp_result* result);
  void listen();
  std::unique_ptr<sdk::Failure> receive_frame(std::string* frame, int32_t* from, uint64_t* bytes);
  void handle_frame(int32_t from, std::string_view bytes);
  void reject_version(int32_t peer, const std::string& version);
  void receive_parts(int32_t from, const Frame& frame, std::string_view bytes);
  void deliver(int32_t from, const Frame& frame, const std::shared_ptr<Incoming>& incoming,
               const sdk::Failure* failure);
  void refuse(int32_t to, const Frame& frame, const sdk::Failure& why);
  void on_refused(int32_t by, const Frame& frame, std::string_view bytes);
  void withdraw(const Transfer& transfer);
  void send_control(int32_t to, Frame head, const std::string& text, int64_t timeout_ns);
  bool is_abandoned(const Transfer& transfer) const;
  void add(Transfer transfer);
  void wait();
  // Waits at most this long. Returns true if the transfer has ended.
  bool drive(Transfer* transfer, int64_t slice_ns);
  void finish(Transfer* transfer);
  void end_messages(const Transfer& transfer);
  void report_failed(int32_t to, uint64_t number, uint64_t id, const sdk::Failure& why);
  std::optional<sdk::Failure> cause() const;

  const sdk::Inner inner_;
  const sdk::RpcHost core_;
  const sdk::Host host_;
  base::LogLimit dropped_;  // messages of others
  base::LogLimit unsent_;   // control frames
  const std::shared_ptr<sdk::BlockPool> memory_;
  std::atomic<uint64_t> last_number_ = 0;
  MessagesInProgress messages_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Transfer> transfers_;
  std::map<int32_t, sdk::Failure> other_versions_;  // peers with another version of the frames
  std::optional<sdk::Failure> abort_cause_;
  std::optional<sdk::Failure> receive_failure_;  // set when receiving has ended

  std::vector<std::thread> threads_;
};

}  // namespace backplane::process_group
