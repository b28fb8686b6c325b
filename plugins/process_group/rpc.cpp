// SPDX-License-Identifier: Apache-2.0
#include "rpc.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#include "backplane/sdk/worker.hpp"

namespace backplane::process_group {
namespace {

constexpr uint64_t kFrameTag = 1;
constexpr uint64_t kPartTags = uint64_t{1} << 48;      // plus number * kMaxParts + part
constexpr int64_t kMaxOrderWaitNs = 1'000'000'000;     // of an ordered message for earlier ones
constexpr int64_t kControlTimeoutNs = 60'000'000'000;  // of a refusal, withdrawal or receipt
constexpr auto kPause = std::chrono::milliseconds(1);  // after a message that could not be received

uint64_t tag_of(uint64_t number, size_t part) { return kPartTags | ((number * kMaxParts + part) & (kPartTags - 1)); }

}  // namespace

Agent::Agent(const sdk::Context& context)
    : inner_(context.inner), core_(context.host), host_(context.host), memory_(sdk::received_memory(context.options)) {
  const int64_t waiters = context.options.integer("num_send_recv_threads");
  try {
    threads_.push_back(sdk::start_thread([this] { listen(); }));
    for (int64_t i = 0; i < waiters; ++i) threads_.push_back(sdk::start_thread([this] { wait(); }));
  } catch (...) {
    abort(sdk::Failure(BP_CANCELLED, "the agent could not start"));
    throw;
  }
}

Agent::~Agent() { abort(sdk::Failure(BP_CANCELLED, "this worker has left")); }

std::unique_ptr<sdk::Work> Agent::start(uint32_t kind, int32_t peer, uint64_t tag, void* data, uint64_t bytes,
                                        bp_result* result) {
  bp_op op;
  bp_op_init(&op, kind);
  op.dtype = BP_U8;
  op.peer = peer;
  op.tag = tag;
  op.timeout_ns = BP_NO_TIMEOUT;
  op.result = result;
  (kind == BP_SEND ? op.input : op.output) = {data, bytes, BP_HOST, 0};
  return inner_.submit(op);
}

void Agent::require_sendable(int32_t to, const sdk::RpcMessage& message) const {
  for (const bp_buffer& buffer : message.buffers()) {
    if (buffer.memory == BP_HOST) continue;
    throw sdk::Failure(BP_UNSUPPORTED,
                       "process_group carries host memory only; choose tensorpipe, with device_maps, for arrays of "
                       "devices, or copy them to the host");
  }
  const std::lock_guard lock(mutex_);
  if (abort_cause_) throw sdk::Failure(*abort_cause_);
  if (receive_failure_) throw sdk::Failure(*receive_failure_);
  const auto peer = other_versions_.find(to);
  if (peer != other_versions_.end()) throw sdk::Failure(peer->second);
}

void Agent::send(int32_t to, sdk::RpcMessage message, int64_t timeout_ns) {
  require_sendable(to, message);
  struct Outgoing {
    sdk::RpcMessage message;
    std::string frame;
  };
  Frame head;
  head.number = last_number_.fetch_add(1) + 1;
  head.id = message.id();
  head.timeout_ns = timeout_ns;
  std::string frame = encode(&head, message.payload(), message.buffers());
  const std::vector<Part>& parts = head.parts;
  const uint64_t number = head.number;
  const auto outgoing = std::make_shared<Outgoing>(Outgoing{std::move(message), std::move(frame)});
  const uint64_t id = outgoing->message.id();
  Transfer transfer;
  transfer.set_deadline(timeout_ns, "it was not received within its timeout");
  if (is_multipart(head)) {
    transfer.number = number;
    transfer.multipart = key_of_sent(to, number);
  }
  // The sender of a goodbye aborts the group, with all queued messages, once the goodbye is released.
  if (id == 0) transfer.ordered = key_of_sent(to, number);
  transfer.works.reserve(1 + parts.size());
  transfer.ended = [this, to, number, id, outgoing](const sdk::Failure* failure) {
    if (failure != nullptr && !cause()) report_failed(to, number, id, *failure);
  };
  bool has_begun = false;
  try {
    // Before its receiver can refuse it, or confirm.
    if (transfer.multipart) messages_.begin_refusable(*transfer.multipart);
    if (transfer.ordered) messages_.begin(*transfer.ordered);
    auto work = start(BP_SEND, to, kFrameTag, outgoing->frame.data(), outgoing->frame.size(), nullptr);
    has_begun = true;
    if (work) transfer.works.push_back(std::move(work));
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].offset != 0) continue;
      void* const data =
          i == 0 ? const_cast<char*>(outgoing->message.payload().data()) : outgoing->message.buffers()[i - 1].data;
      work = start(BP_SEND, to, tag_of(number, i), data, parts[i].bytes, nullptr);
      if (work) transfer.works.push_back(std::move(work));
    }
  } catch (const std::exception& e) {
    if (!has_begun) {
      messages_.take_refusal(transfer.number);
      end_messages(transfer);
      throw;
    }
    for (const auto& work : transfer.works) work->cancel();
    const auto* const failure = dynamic_cast<const sdk::Failure*>(&e);
    transfer.failure.emplace(failure != nullptr ? *failure : sdk::Failure(BP_RESOURCE, "no memory is left to send it"));
  }
  // A transfer that has ended, as those of small messages have, needs no other thread.
  if (!drive(&transfer, 0)) add(std::move(transfer));
}

void Agent::listen() {
  std::string frame(kFrameSize, '\0');
  int32_t from = -1;
  uint64_t bytes = 0;
  for (;;) {
    if (const auto failure = receive_frame(&frame, &from, &bytes)) {
      if (cause()) return;
      // Receiving continues, for example after a message that was too long.
      const int32_t status = failure->status();
      if (status == BP_INVALID || status == BP_TIMEOUT || status == BP_CANCELLED) {
        host_.log(dropped_, BP_LOG_WARN, std::string("a message was dropped: ").append(failure->what()));
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kPause, [this] { return abort_cause_.has_value(); });
        continue;
      }
      host_.log(status == BP_PEER_LOST ? BP_LOG_INFO : BP_LOG_ERROR,
                std::string("receiving has ended: ").append(failure->what()));
      {
        const std::lock_guard lock(mutex_);
        receive_failure_.emplace(*failure);
      }
      messages_.end_receipts();
      return core_.lost(-1, *failure);
    }
    try {
      handle_frame(from, std::string_view(frame).substr(0, bytes));
    } catch (const std::exception& e) {
      host_.log(dropped_, BP_LOG_WARN, std::string("a message was dropped: ") + e.what());
    }
  }
}

std::unique_ptr<sdk::Failure> Agent::receive_frame(std::string* frame, int32_t* from, uint64_t* bytes) {
  bp_result result = {sizeof(bp_result), -1, 0, 0};
  try {
    const auto work = start(BP_RECV, BP_ANY_SOURCE, kFrameTag, frame->data(), frame->size(), &result);
    if (work) work->wait(BP_NO_TIMEOUT);
  } catch (const sdk::Failure& failure) {
    return std::make_unique<sdk::Failure>(failure);
  }
  *from = result.source;
  *bytes = result.bytes;
  return nullptr;
}

// Both sides report the difference instead of waiting for replies.
void Agent::reject_version(int32_t peer, const std::string& version) {
  std::string text = "rank ";
  text.append(std::to_string(peer)).append(" uses version ").append(version).append(" of this agent's frames, and ");
  text.append("this worker version ").append(kVersion).append("; run the same version of Backplane on all workers");
  const sdk::Failure why(BP_UNSUPPORTED, text, peer);
  {
    const std::lock_guard lock(mutex_);
    if (!other_versions_.emplace(peer, why).second) return;
  }
  host_.log(BP_LOG_WARN, text);
  core_.lost(peer, why);
  Frame version_notice;  // belongs to no message: the peer reads only its version
  version_notice.withdrawn = true;
  send_control(peer, version_notice, "", kControlTimeoutNs);
}

void Agent::handle_frame(int32_t from, std::string_view bytes) {
  const std::string version = other_version(bytes);
  if (!version.empty()) return reject_version(from, version);
  Frame frame;
  try {
    decode(bytes, core_.max_message_bytes(), &frame);
    if (frame.refusal != 0) return on_refused(from, frame, bytes);
    if (frame.withdrawn) return messages_.end({from, frame.number});
    if (frame.receipt) return messages_.end(key_of_sent(from, frame.number));
    receive_parts(from, frame, bytes);
  } catch (const std::bad_alloc&) {
    refuse(from, frame, sdk::Failure(BP_RESOURCE, "its receiver has no memory for it", from));
    throw;
  } catch (const sdk::Failure& why) {
    refuse(from, frame, why);
    throw;
  }
}

// Reports the refusal to the sender, which waits for a reply and for the parts to be received.
void Agent::refuse(int32_t to, const Frame& frame, const sdk::Failure& why) {
  if (frame.number == 0 || frame.refusal != 0) return;
  Frame head;
  head.number = frame.number;
  head.id = frame.id;
  head.refusal = why.status();
  send_control(to, head, why.what(), BP_NO_TIMEOUT);
}

// Reports the withdrawal to the receiver, which waits for the other parts and holds back later ordered messages.
void Agent::withdraw(const Transfer& transfer) {
  if (transfer.failure->status() == BP_PEER_LOST) return;
  Frame head;
  head.number = transfer.number;
  head.withdrawn = true;
  send_control(destination_of(*transfer.multipart), head, "", kControlTimeoutNs);
}

void Agent::send_control(int32_t to, Frame head, const std::string& text, int64_t timeout_ns) {
  if (cause()) return;
  try {
    const auto control = std::make_shared<std::string>(encode(&head, text, {}));
    Transfer transfer;
    transfer.set_deadline(timeout_ns, "");
    auto work = start(BP_SEND, to, kFrameTag, control->data(), control->size(), nullptr);
    if (work) transfer.works.push_back(std::move(work));
    transfer.ended = [control](const sdk::Failure*) {};
    if (!transfer.works.empty()) add(std::move(transfer));
  } catch (const std::exception& e) {
    const auto* const failure = dynamic_cast<const sdk::Failure*>(&e);
    const bool has_left = failure != nullptr && failure->status() == BP_PEER_LOST;  // it does not wait for this
    std::string line = "cannot send rank ";
    line.append(std::to_string(to)).append(" a refusal, withdrawal or receipt: ").append(e.what());
    host_.log(unsent_, has_left ? BP_LOG_INFO : BP_LOG_WARN, line);
  }
}

void Agent::on_refused(int32_t by, const Frame& frame, std::string_view bytes) {
  const Part& part = frame.parts[0];
  const std::string why = part.offset == 0 ? "" : std::string(bytes.substr(part.offset, part.bytes));
  const sdk::Failure refusal(frame.refusal, "its receiver refused it: " + why, by);
  // The thread that waits for its parts cancels them and reports the failure.
  if (messages_.refuse(frame.number, refusal)) return;
  messages_.end(key_of_sent(by, frame.number));  // no receipt comes
  report_failed(by, frame.number, frame.id, refusal);
}

void Agent::report_failed(int32_t to, uint64_t number, uint64_t id, const sdk::Failure& why) {
  if (messages_.note_failed(number)) core_.failed(to, id, why);
}

void Agent::receive_parts(int32_t from, const Frame& frame, std::string_view bytes) {
  const auto incoming = std::make_shared<Incoming>();
  incoming->frame = bytes;
  incoming->results.resize(frame.parts.size(), bp_result{sizeof(bp_result), -1, 0, 0});
  const MessageKey key(from, frame.number);
  Transfer transfer;
  transfer.set_deadline(frame.timeout_ns, "its parts did not arrive within their timeout");
  transfer.works.reserve(frame.parts.size());
  transfer.ended = [this, from, frame, incoming](const sdk::Failure* failure) {
    deliver(from, frame, incoming, failure);
  };
  try {
    if (is_multipart(frame)) {
      transfer.multipart = key;
      messages_.begin(key);
    }
    for (size_t i = 0; i < frame.parts.size(); ++i) {
      const Part& part = frame.parts[i];
      if (part.offset != 0) {
        incoming->parts.push_back(reinterpret_cast<std::byte*>(incoming->frame.data()) + part.offset);
        continue;
      }
      incoming->parts.push_back(incoming->large_parts.emplace_back(memory_->take(part.bytes)).get());
      auto work =
          start(BP_RECV, from, tag_of(frame.number, i), incoming->parts.back(), part.bytes, &incoming->results[i]);
      if (work) transfer.works.push_back(std::move(work));
    }
  } catch (...) {
    // The memory must stay until the transport no longer writes to it.
    for (const auto& work : transfer.works) work->cancel();
    transfer.ended = [incoming](const sdk::Failure*) {};
    transfer.works.empty() ? end_messages(transfer) : add(std::move(transfer));
    throw;
  }
  if (transfer.works.empty()) {
    if (transfer.multipart || frame.id != 0 || messages_.is_first(key, 0)) {
      transfer.ended(nullptr);
      return end_messages(transfer);
    }
    // A message with id 0, such as a goodbye, must not overtake earlier ones.
    transfer.ordered = key;
    transfer.set_deadline(kMaxOrderWaitNs, "");
  }
  add(std::move(transfer));
}

void Agent::deliver(int32_t from, const Frame& frame, const std::shared_ptr<Incoming>& incoming,
                    const sdk::Failure* failure) {
  if (cause()) return;
  if (failure != nullptr) return refuse(from, frame, *failure);
  std::vector<bp_buffer> buffers;
  for (size_t i = 0; i < frame.parts.size(); ++i) {
    const Part& part = frame.parts[i];
    if (part.offset == 0 && incoming->results[i].bytes != part.bytes) {
      return refuse(from, frame, sdk::Failure(BP_INVALID, "a part of it has another size than its frame declares"));
    }
    if (i > 0) buffers.push_back({incoming->parts[i], part.bytes, BP_HOST, 0});
  }
  const std::string_view payload(reinterpret_cast<const char*>(incoming->parts[0]), frame.parts[0].bytes);
  core_.received(from, payload, buffers, incoming);
  if (frame.id != 0 || frame.number == 0) return;
  Frame receipt;
  receipt.number = frame.number;
  receipt.receipt = true;
  send_control(from, receipt, "", kControlTimeoutNs);
}

std::optional<sdk::Failure> Agent::cause() const {
  const std::lock_guard lock(mutex_);
  return abort_cause_;
}

void Agent::abort(const sdk::Failure& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (abort_cause_) return;
    abort_cause_.emplace(why);
    changed_.notify_all();
  }
  messages_.abort();
  inner_.abort(why);
  for (std::thread& thread : threads_) thread.join();  // then nothing is delivered
  memory_->close();
}

}  // namespace backplane::process_group
