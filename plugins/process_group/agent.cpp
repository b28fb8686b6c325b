// SPDX-License-Identifier: Apache-2.0
#include "agent.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#include "backplane/sdk/worker.hpp"

namespace backplane::process_group {
namespace {

constexpr uint64_t kFrameTag = 1;
constexpr uint64_t kPartTags = uint64_t{1} << 48;      // plus number * kMostParts + part
constexpr int64_t kMostBehindNs = 1'000'000'000;       // how long a word waits for what was sent before it
constexpr int64_t kMostToldNs = 60'000'000'000;        // how long a receiver is told that something will not come
constexpr auto kPause = std::chrono::milliseconds(1);  // after a message that could not be received

uint64_t tag_of(uint64_t number, size_t part) { return kPartTags | ((number * kMostParts + part) & (kPartTags - 1)); }

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

void Agent::require_way(int32_t to, const sdk::RpcMessage& message) const {
  for (const bp_buffer& buffer : message.buffers()) {
    if (buffer.memory == BP_HOST) continue;
    throw sdk::Failure(BP_UNSUPPORTED,
                       "process_group carries host memory only; choose tensorpipe, with device_maps, for arrays of "
                       "devices, or copy them to the host");
  }
  const std::lock_guard lock(mutex_);
  if (ended_) throw sdk::Failure(*ended_);
  if (deaf_) throw sdk::Failure(*deaf_);
  const auto stranger = strangers_.find(to);
  if (stranger != strangers_.end()) throw sdk::Failure(stranger->second);
}

void Agent::send(int32_t to, sdk::RpcMessage message, int64_t timeout_ns) {
  require_way(to, message);
  struct Departure {
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
  const auto departure = std::make_shared<Departure>(Departure{std::move(message), std::move(frame)});
  const uint64_t id = departure->message.id();
  Flight flight;
  flight.set_limit(timeout_ns, "nobody received it in the time that it had");
  if (goes_in_parts(head)) {
    flight.number = number;
    flight.arrives = departure_of(to, number);
  }
  // Whoever says goodbye waits until it is given back, and then ends the group with all that is still in its queues.
  if (id == 0) flight.follows = departure_of(to, number);
  flight.works.reserve(1 + parts.size());
  flight.ended = [this, to, number, id, departure](const sdk::Failure* failure) {
    if (failure != nullptr && !cause()) tell_failed(to, number, id, *failure);
  };
  bool has_begun = false;
  try {
    if (flight.arrives || flight.follows) {  // before its receiver can refuse it, or confirm
      const std::lock_guard lock(mutex_);
      if (flight.arrives) in_parts_.emplace(number, std::nullopt);
      under_way_.insert(departure_of(to, number));
    }
    auto work = start(BP_SEND, to, kFrameTag, departure->frame.data(), departure->frame.size(), nullptr);
    has_begun = true;
    if (work) flight.works.push_back(std::move(work));
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].offset != 0) continue;
      void* const data =
          i == 0 ? const_cast<char*>(departure->message.payload().data()) : departure->message.buffers()[i - 1].data;
      work = start(BP_SEND, to, tag_of(number, i), data, parts[i].bytes, nullptr);
      if (work) flight.works.push_back(std::move(work));
    }
  } catch (const std::exception& e) {
    if (!has_begun) {
      forget(flight.number);
      land(flight);
      throw;
    }
    for (const auto& work : flight.works) work->cancel();
    const auto* const failure = dynamic_cast<const sdk::Failure*>(&e);
    flight.failure.emplace(failure != nullptr ? *failure : sdk::Failure(BP_RESOURCE, "no memory is left to send it"));
  }
  // What is sent already, as small messages are, needs no other thread.
  if (!drive(&flight, 0)) add(std::move(flight));
}

void Agent::listen() {
  std::string frame(kFrameSize, '\0');
  int32_t from = -1;
  uint64_t bytes = 0;
  for (;;) {
    if (const auto failure = receive_frame(&frame, &from, &bytes)) {
      if (cause()) return;
      // One that was too long, say, is no reason to be deaf to the next.
      const int32_t status = failure->status();
      if (status == BP_INVALID || status == BP_TIMEOUT || status == BP_CANCELLED) {
        host_.log(BP_LOG_WARN, std::string("a message was dropped: ").append(failure->what()));
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kPause, [this] { return ended_.has_value(); });
        continue;
      }
      host_.log(status == BP_PEER_LOST ? BP_LOG_INFO : BP_LOG_ERROR,
                std::string("nothing more is received: ").append(failure->what()));
      {
        const std::lock_guard lock(mutex_);
        deaf_.emplace(*failure);
        arrived_.notify_all();
      }
      return core_.lost(-1, *failure);
    }
    try {
      take_in(from, std::string_view(frame).substr(0, bytes));
    } catch (const std::exception& e) {
      host_.log(BP_LOG_WARN, std::string("a message was dropped: ") + e.what());
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

// Neither understands the other: both are to say so, instead of waiting for answers.
void Agent::part_with(int32_t stranger, const std::string& version) {
  std::string text = "rank ";
  text.append(std::to_string(stranger))
      .append(" speaks version ")
      .append(version)
      .append(" of this agent's frames, and ");
  text.append("this worker version ").append(kVersion).append("; let all workers run the same version of Backplane");
  const sdk::Failure why(BP_UNSUPPORTED, text, stranger);
  {
    const std::lock_guard lock(mutex_);
    if (!strangers_.emplace(stranger, why).second) return;
  }
  host_.log(BP_LOG_WARN, text);
  core_.lost(stranger, why);
  Frame greeting;  // to no message: its version is what counts
  greeting.withdrawn = true;
  tell(stranger, greeting, "", kMostToldNs);
}

void Agent::take_in(int32_t from, std::string_view bytes) {
  const std::string version = other_version(bytes);
  if (!version.empty()) return part_with(from, version);
  Frame frame;
  try {
    decode(bytes, core_.max_message_bytes(), &frame);
    if (frame.refusal != 0) return on_refused(from, frame, bytes);
    if (frame.withdrawn) return end_way({from, frame.number});
    if (frame.receipt) return end_way(departure_of(from, frame.number));
    receive_parts(from, frame, bytes);
  } catch (const std::bad_alloc&) {
    refuse(from, frame, sdk::Failure(BP_RESOURCE, "its receiver has no memory for it", from));
    throw;
  } catch (const sdk::Failure& why) {
    refuse(from, frame, why);
    throw;
  }
}

// Tells the sender, who otherwise waits for an answer, and for somebody to receive the parts.
void Agent::refuse(int32_t to, const Frame& frame, const sdk::Failure& why) {
  if (frame.number == 0 || frame.refusal != 0) return;
  Frame head;
  head.number = frame.number;
  head.id = frame.id;
  head.refusal = why.status();
  tell(to, head, why.what(), BP_NO_TIMEOUT);
}

// Tells the receiver, who otherwise waits for the rest, and holds back what comes after it.
void Agent::withdraw(const Flight& flight) {
  if (flight.failure->status() == BP_PEER_LOST) return;
  Frame head;
  head.number = flight.number;
  head.withdrawn = true;
  tell(destination_of(*flight.arrives), head, "", kMostToldNs);
}

void Agent::tell(int32_t to, Frame head, const std::string& text, int64_t timeout_ns) {
  if (cause()) return;
  try {
    const auto word = std::make_shared<std::string>(encode(&head, text, {}));
    Flight flight;
    flight.set_limit(timeout_ns, "");
    auto work = start(BP_SEND, to, kFrameTag, word->data(), word->size(), nullptr);
    if (work) flight.works.push_back(std::move(work));
    flight.ended = [word](const sdk::Failure*) {};
    if (!flight.works.empty()) add(std::move(flight));
  } catch (const std::exception& e) {
    const auto* const failure = dynamic_cast<const sdk::Failure*>(&e);
    const bool has_left = failure != nullptr && failure->status() == BP_PEER_LOST;  // and waits for nothing
    std::string line = "rank ";
    line.append(std::to_string(to)).append(" cannot be told what became of a message: ").append(e.what());
    host_.log(has_left ? BP_LOG_INFO : BP_LOG_WARN, line);
  }
}

void Agent::on_refused(int32_t by, const Frame& frame, std::string_view bytes) {
  const Part& part = frame.parts[0];
  const std::string why = part.offset == 0 ? "" : std::string(bytes.substr(part.offset, part.bytes));
  const sdk::Failure refusal(frame.refusal, "its receiver refused it: " + why, by);
  {
    const std::lock_guard lock(mutex_);
    const auto found = in_parts_.find(frame.number);
    if (found != in_parts_.end()) {  // whoever waits for its parts cancels them, and tells the core
      found->second.emplace(refusal);
      return;
    }
  }
  end_way(departure_of(by, frame.number));  // no receipt comes
  tell_failed(by, frame.number, frame.id, refusal);
}

// Once: a message that was given up here may be refused there, too.
void Agent::tell_failed(int32_t to, uint64_t number, uint64_t id, const sdk::Failure& why) {
  constexpr size_t kMost = 4096;
  {
    const std::lock_guard lock(mutex_);
    if (!failed_.insert(number).second) return;
    if (failed_.size() > kMost) failed_.erase(failed_.begin());
  }
  core_.failed(to, id, why);
}

void Agent::receive_parts(int32_t from, const Frame& frame, std::string_view bytes) {
  const auto arrival = std::make_shared<Arrival>();
  arrival->frame = bytes;
  arrival->results.resize(frame.parts.size(), bp_result{sizeof(bp_result), -1, 0, 0});
  const Origin origin(from, frame.number);
  Flight flight;
  flight.set_limit(frame.timeout_ns, "its parts did not come in the time that it had");
  flight.works.reserve(frame.parts.size());
  flight.ended = [this, from, frame, arrival](const sdk::Failure* failure) { deliver(from, frame, arrival, failure); };
  try {
    if (goes_in_parts(frame)) {
      flight.arrives = origin;
      const std::lock_guard lock(mutex_);
      under_way_.insert(origin);
    }
    for (size_t i = 0; i < frame.parts.size(); ++i) {
      const Part& part = frame.parts[i];
      if (part.offset != 0) {
        arrival->parts.push_back(reinterpret_cast<std::byte*>(arrival->frame.data()) + part.offset);
        continue;
      }
      arrival->parts.push_back(arrival->alone.emplace_back(memory_->take(part.bytes)).get());
      auto work =
          start(BP_RECV, from, tag_of(frame.number, i), arrival->parts.back(), part.bytes, &arrival->results[i]);
      if (work) flight.works.push_back(std::move(work));
    }
  } catch (...) {
    // The memory stays until the transport writes to it no more.
    for (const auto& work : flight.works) work->cancel();
    flight.ended = [arrival](const sdk::Failure*) {};
    flight.works.empty() ? land(flight) : add(std::move(flight));
    throw;
  }
  if (flight.works.empty()) {
    if (flight.arrives || frame.id != 0 || is_next(origin, 0)) {
      flight.ended(nullptr);
      return land(flight);
    }
    // Nobody asks for it: a goodbye, say, which would end what was sent before it.
    flight.follows = origin;
    flight.set_limit(kMostBehindNs, "");
  }
  add(std::move(flight));
}

void Agent::deliver(int32_t from, const Frame& frame, const std::shared_ptr<Arrival>& arrival,
                    const sdk::Failure* failure) {
  if (cause()) return;
  if (failure != nullptr) return refuse(from, frame, *failure);
  std::vector<bp_buffer> buffers;
  for (size_t i = 0; i < frame.parts.size(); ++i) {
    const Part& part = frame.parts[i];
    if (part.offset == 0 && arrival->results[i].bytes != part.bytes) {
      return refuse(from, frame, sdk::Failure(BP_INVALID, "a part of it was not as long as its frame said"));
    }
    if (i > 0) buffers.push_back({arrival->parts[i], part.bytes, BP_HOST, 0});
  }
  const std::string_view payload(reinterpret_cast<const char*>(arrival->parts[0]), frame.parts[0].bytes);
  core_.received(from, payload, buffers, arrival);
  if (frame.id != 0 || frame.number == 0) return;
  Frame receipt;
  receipt.number = frame.number;
  receipt.receipt = true;
  tell(from, receipt, "", kMostToldNs);
}

std::optional<sdk::Failure> Agent::cause() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void Agent::abort(const sdk::Failure& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_.emplace(why);
    changed_.notify_all();
    arrived_.notify_all();
  }
  inner_.abort(why);
  for (std::thread& thread : threads_) thread.join();  // they deliver nothing more
  memory_->close();
}

}  // namespace backplane::process_group
