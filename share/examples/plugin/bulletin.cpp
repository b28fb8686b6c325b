// SPDX-License-Identifier: Apache-2.0
//
// A minimal backend in one file. Its transport is the store that all ranks share: a message is a value under a key that
// its sender and receiver derive. It implements send and recv; the core adds collectives, timeouts and the detection of
// dead peers. It is slow and meant to be read.
#include <backplane/sdk/sdk.hpp>
#include <backplane/sdk/worker.hpp>
#include <cstring>
#include <map>

namespace sdk = backplane::sdk;

namespace {

// The reason why the group has ended, if it has.
struct End {
  std::mutex mutex;
  std::optional<sdk::Failure> why;
};

class Receive final : public sdk::Work {
 public:
  Receive(sdk::Host host, std::shared_ptr<End> end, std::string key, const bp_op& op)
      : host_(host),
        end_(std::move(end)),
        key_(std::move(key)),
        output_(op.output),
        peer_(op.peer),
        result_(op.result) {}

  bool wait(int64_t timeout_ns) override {
    try {
      if (!done_ && !failure_) take(host_.store_get(key_, timeout_ns));
    } catch (const sdk::Failure& failure) {
      const std::lock_guard lock(end_->mutex);
      if (!end_->why && failure.status() == BP_TIMEOUT) return false;
      failure_.emplace(end_->why.value_or(failure));
    }
    if (failure_) throw sdk::Failure(*failure_);
    return true;
  }

 private:
  void take(const std::string& message) {
    host_.store_delete(key_);
    if (result_ != nullptr) {
      result_->source = peer_;
      result_->bytes = message.size();
    }
    if (message.size() > output_.count) throw sdk::Failure(BP_INVALID, "the message is longer than the buffer", peer_);
    std::memcpy(output_.data, message.data(), message.size());
    done_ = true;
  }

  sdk::Host host_;
  std::shared_ptr<End> end_;
  const std::string key_;
  const bp_buffer output_;
  const int32_t peer_;
  bp_result* const result_;
  bool done_ = false;
  std::optional<sdk::Failure> failure_;
};

class Bulletin final : public sdk::ProcessGroup {
 public:
  explicit Bulletin(const sdk::Context& context) : rank_(context.rank), host_(context.host) {}

  // submit must not block, and the store blocks: a thread writes, and Receive::wait reads.
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    if (op.kind == BP_RECV) return std::make_unique<Receive>(host_, end_, next_key(op.peer, rank_, op.tag), op);
    const std::string_view message(static_cast<const char*>(op.input.data), op.input.count);
    return writer_.submit(
        [host = host_, key = next_key(rank_, op.peer, op.tag), message] { host.store_set(key, message); });
  }

  // The core also ends every store call in progress.
  void abort(const sdk::Failure& why) noexcept override {
    {
      const std::lock_guard lock(end_->mutex);
      if (!end_->why) end_->why.emplace(why);
    }
    writer_.abort(why);
  }

 private:
  // Both sides count the messages of a sender, receiver and tag, so they arrive in the order of the sends.
  std::string next_key(int32_t from, int32_t to, uint64_t tag) {
    const std::string way = std::to_string(from) + ">" + std::to_string(to) + "/" + std::to_string(tag);
    const std::lock_guard lock(mutex_);
    return way + "/" + std::to_string(counts_[way]++);
  }

  const int32_t rank_;
  const sdk::Host host_;
  std::mutex mutex_;
  std::map<std::string, uint64_t> counts_;
  std::shared_ptr<End> end_ = std::make_shared<End>();
  sdk::Workers writer_{1};
};

struct Description {
  static constexpr const char* id = "bulletin";
  static constexpr const char* version = "1.0";
  static constexpr const char* summary = "messages through the store; an example";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags = BP_BACKEND_TAGS;
  static constexpr std::array<bp_option, 0> options = {};
  // Bytes are enough: the core recasts other dtypes.
  static constexpr std::array capabilities = {sdk::moves(BP_SEND, BP_BIT(BP_U8)), sdk::moves(BP_RECV, BP_BIT(BP_U8))};

  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<Bulletin>(context);
  }
};

}  // namespace

BACKPLANE_PLUGIN("Backplane's examples", Description)
