// SPDX-License-Identifier: Apache-2.0
//
// Messages over a process group's send and recv, whatever its backend. One thread receives frames from anybody; what is
// in flight beside that is waited for by a few threads, in turn, so that a peer who does not come holds nobody up.
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
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backplane/sdk/block.hpp"
#include "backplane/sdk/layer.hpp"
#include "backplane/sdk/rpc.hpp"
#include "frame.hpp"

namespace backplane::process_group {

class Agent final : public sdk::RpcAgent {
 public:
  explicit Agent(const sdk::Context& context);
  ~Agent() override;

  void send(int32_t to, sdk::RpcMessage message, int64_t timeout_ns) override;
  void abort(const sdk::Failure& why) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  // Who has sent a message, and its number there: what is sent later has a larger one.
  using Origin = std::pair<int32_t, uint64_t>;
  // Of what this worker sends there itself, beside what comes from there.
  static Origin departure_of(int32_t to, uint64_t number) { return {-1 - to, number}; }
  static int32_t destination_of(const Origin& departure) { return -1 - departure.first; }

  // Operations under way, and what follows when all have ended: their failure, or none.
  struct Flight {
    uint64_t number = 0;            // of a message that is sent in parts, which its receiver may refuse
    std::optional<Origin> arrives;  // what comes, or goes, in parts
    std::optional<Origin> follows;  // what ends after all that was sent before it, and with its receipt if it is sent
    std::vector<std::unique_ptr<sdk::Work>> works;
    std::optional<Clock::time_point> limit;
    const char* late = "";                                  // what it fails with then
    void set_limit(int64_t timeout_ns, const char* words);  // none if negative
    std::optional<sdk::Failure> failure;                    // the first
    std::function<void(const sdk::Failure* failure)> ended;
  };

  // A message that was received: the frame's bytes, or a copy of its parts, and those that travelled alone.
  struct Arrival {
    std::string frame;
    std::vector<std::shared_ptr<std::byte>> alone;
    std::vector<std::byte*> parts;
    std::vector<bp_result> results;
  };

  void require_way(int32_t to, const sdk::RpcMessage& message) const;  // throws if it cannot be sent there
  std::unique_ptr<sdk::Work> start(uint32_t kind, int32_t peer, uint64_t tag, void* data, uint64_t bytes,
                                   bp_result* result);
  void listen();
  std::unique_ptr<sdk::Failure> receive_frame(std::string* frame, int32_t* from, uint64_t* bytes);
  void take_in(int32_t from, std::string_view bytes);
  void part_with(int32_t stranger, const std::string& version);
  void receive_parts(int32_t from, const Frame& frame, std::string_view bytes);
  void deliver(int32_t from, const Frame& frame, const std::shared_ptr<Arrival>& arrival, const sdk::Failure* failure);
  bool is_next(const Origin& word, int64_t slice_ns);
  void refuse(int32_t to, const Frame& frame, const sdk::Failure& why);
  void on_refused(int32_t by, const Frame& frame, std::string_view bytes);
  void withdraw(const Flight& flight);
  void end_way(const Origin& message);
  void tell(int32_t to, Frame head, const std::string& text, int64_t timeout_ns);
  bool is_given_up(const Flight& flight) const;
  void add(Flight flight);
  void wait();
  // Waits for a moment. True once it has ended.
  bool drive(Flight* flight, int64_t slice_ns);
  void finish(Flight* flight);
  void land(const Flight& flight);
  std::optional<sdk::Failure> forget(uint64_t number);  // returns its refusal, if it has come
  void tell_failed(int32_t to, uint64_t number, uint64_t id, const sdk::Failure& why);
  std::optional<sdk::Failure> cause() const;

  const sdk::Inner inner_;
  const sdk::RpcHost core_;
  const sdk::Host host_;
  const std::shared_ptr<sdk::BlockPool> memory_;
  std::atomic<uint64_t> last_number_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Flight> flights_;
  std::map<uint64_t, std::optional<sdk::Failure>> in_parts_;  // messages that are sent so, and why if they were refused
  std::set<uint64_t> failed_;                                 // the last messages whose failure the core has been told
  std::set<Origin> under_way_;                 // messages whose parts, or receipts, are under way, in either direction
  std::condition_variable arrived_;            // one of them has ended, or the agent has
  std::map<int32_t, sdk::Failure> strangers_;  // workers of another version
  std::optional<sdk::Failure> ended_;
  std::optional<sdk::Failure> deaf_;  // why nothing is received any more

  std::vector<std::thread> threads_;
};

}  // namespace backplane::process_group
