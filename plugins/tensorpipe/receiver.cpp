// SPDX-License-Identifier: Apache-2.0
#include "receiver.hpp"

#include <exception>
#include <string>
#include <utility>

#include "errors.hpp"

namespace backplane::tensorpipe {
namespace {

constexpr char kGreeting = '!';

}  // namespace

Receiver::Receiver(const sdk::Context& context, const Token& token, std::shared_ptr<sdk::BlockPool> memory,
                   Staging& staging, const std::atomic<bool>& is_stopped)
    : core_(context.host),
      host_(context.host),
      token_(token),
      memory_(std::move(memory)),
      staging_(staging),
      is_stopped_(is_stopped),
      sources_(static_cast<size_t>(context.world_size)) {}

void Receiver::add(const Pipe& pipe) {
  {
    const std::lock_guard lock(mutex_);
    pipes_.insert(pipe);
  }
  read(pipe, std::make_shared<IncomingPipe>());
}

void Receiver::add(const Express& express) {
  {
    const std::lock_guard lock(mutex_);
    express_.insert(express);
  }
  express->write(&kGreeting, sizeof(kGreeting), [](const ::tensorpipe::Error&) {});
  read_express(express, std::make_shared<IncomingPipe>());
}

void Receiver::clear() {
  // Released without the lock: messages may run destructors of the program.
  std::vector<Source> sources(sources_.size());
  std::set<Pipe> pipes;
  std::set<Express> express;
  const std::lock_guard lock(mutex_);
  sources.swap(sources_);
  pipes.swap(pipes_);
  express.swap(express_);
}

std::unique_ptr<IncomingMessage> Receiver::parse(::tensorpipe::Descriptor descriptor) {
  return std::make_unique<IncomingMessage>(
      std::move(descriptor), token_, static_cast<int32_t>(sources_.size()), core_.max_message_bytes(), memory_.get(),
      [this](int32_t rank) -> const DeviceSet& { return staging_.allowed_devices(rank); });
}

void Receiver::read(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming) {
  // Weak, because a pipe keeps its callbacks.
  pipe->readDescriptor([this, incoming, weak = std::weak_ptr(pipe)](const ::tensorpipe::Error& error,
                                                                    ::tensorpipe::Descriptor descriptor) {
    const Pipe same = weak.lock();
    if (!same) return;
    const int32_t from = incoming->from;
    const uint64_t express = incoming->express;
    if (error) return drop(same, from, express, failure_of(error, from));
    std::unique_ptr<IncomingMessage> received;
    try {
      received = parse(std::move(descriptor));
    } catch (const sdk::Failure& e) {
      host_.log(dropped_, BP_LOG_WARN, e.what());
      return drop(same, e.peer_rank() >= 0 ? e.peer_rank() : from, express, e);
    } catch (const std::exception& e) {
      host_.log(dropped_, BP_LOG_WARN, e.what());
      return drop(same, from, express, sdk::Failure(BP_RESOURCE, e.what(), from));
    }
    incoming->from = received->from();
    incoming->express = received->express_position().express;
    take(same, incoming, std::move(received));
    read(same, incoming);
  });
}

// An inline message is delivered before TensorPipe is told to continue, so that its waiter runs meanwhile. Not while
// other messages are arriving: a goodbye must not overtake earlier messages.
void Receiver::take(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming,
                    std::unique_ptr<IncomingMessage> received) {
  if (received->is_inline() && incoming->arriving == 0) {
    deliver(pipe, std::move(received));
    pipe->read({}, [](const ::tensorpipe::Error&) {});
    return;
  }
  ++incoming->arriving;
  const ::tensorpipe::Allocation allocation = received->allocation();
  // Copies of a callback share its state.
  auto rest = std::make_shared<std::unique_ptr<IncomingMessage>>(std::move(received));
  pipe->read(allocation,
             [this, incoming, rest = std::move(rest), weak = std::weak_ptr(pipe)](const ::tensorpipe::Error& failed) {
               const Pipe same = weak.lock();
               if (failed) {
                 --incoming->arriving;
               } else if (incoming->copying > 0 || (*rest)->has_devices()) {
                 place(same, incoming, std::move(*rest));
               } else {
                 deliver(same, std::move(*rest));
                 --incoming->arriving;
               }
             });
}

// Copies a message to its devices. Later messages of the pipe go through the same thread to keep their order.
void Receiver::place(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming,
                     std::unique_ptr<IncomingMessage> received) {
  ++incoming->copying;
  const auto rest = std::make_shared<std::unique_ptr<IncomingMessage>>(std::move(received));
  staging_.place(**rest, [this, incoming, rest, weak = std::weak_ptr(pipe)](const sdk::Failure* failure) {
    const int32_t from = (*rest)->from();
    const std::string_view payload = (*rest)->payload();
    if (failure == nullptr) {
      deliver(weak.lock(), std::move(*rest));
    } else if (!is_stopped_) {
      core_.refused(from, payload, std::move(*rest), *failure);
    }
    --incoming->copying;
    --incoming->arriving;
  });
}

// `pipe` is null if it has ended.
void Receiver::deliver(const Pipe& pipe, std::unique_ptr<IncomingMessage> received) {
  if (is_stopped_) return;
  if (received->wants_receipt()) {
    const std::lock_guard lock(mutex_);
    if (pipes_.contains(pipe) && source(received->from()).goodbyes.defer(pipe, received)) return;
  }
  hand_over(pipe, std::move(received));
}

void Receiver::hand_over(const Pipe& pipe, std::unique_ptr<IncomingMessage> received) {
  if (is_stopped_) return;
  const IncomingMessage& it = *received;
  const bool wants_receipt = it.wants_receipt();
  core_.received(it.from(), it.payload(), it.buffers(), std::move(received));
  if (wants_receipt && pipe) pipe->write({}, [](const ::tensorpipe::Error&) {});
}

void Receiver::hand_over(std::vector<Goodbye> goodbyes) {
  for (Goodbye& each : goodbyes) hand_over(each.pipe, std::move(each.received));
}

// Drops a pipe. Replies that were on it are lost.
void Receiver::drop(const Pipe& pipe, int32_t from, uint64_t express, const sdk::Failure& why) {
  std::vector<Goodbye> waiting;
  {
    const std::lock_guard lock(mutex_);
    pipes_.erase(pipe);
    if (from >= 0) waiting = source(from).goodbyes.take(pipe);
  }
  pipe->close();
  hand_over(std::move(waiting));
  report_loss(from, express, why);
}

// Reports the loss of a pipe and its express connection once.
void Receiver::report_loss(int32_t from, uint64_t express, const sdk::Failure& why) {
  if (from < 0 || is_stopped_) return;
  if (express > 0) {
    const std::lock_guard lock(mutex_);
    uint64_t& lost = source(from).lost;
    if (express <= lost) return;
    lost = express;
  }
  core_.lost(from, why);
}

void Receiver::read_express(const Express& express, const std::shared_ptr<IncomingPipe>& incoming) {
  express->read(
      [this, incoming, weak = std::weak_ptr(express)](const ::tensorpipe::Error& error, const void* data, size_t size) {
        const Express same = weak.lock();
        if (!same) return;
        const int32_t from = incoming->from;
        if (error) return drop_express(same, *incoming, failure_of(error, from));
        try {
          ::tensorpipe::Descriptor descriptor;
          descriptor.metadata.assign(static_cast<const char*>(data), size);
          auto received = parse(std::move(descriptor));
          incoming->from = received->from();
          incoming->express = received->express_position().express;
          if (received->wants_receipt() || incoming->express == 0) {
            throw sdk::Failure(
                BP_INVALID,
                "a message of rank " + std::to_string(received->from()) + " was refused: it must be sent on a pipe",
                received->from());
          }
          deliver(nullptr, std::move(received));
          count_express(*incoming);
        } catch (const sdk::Failure& e) {
          host_.log(dropped_, BP_LOG_WARN, e.what());
          if (e.peer_rank() >= 0) incoming->from = e.peer_rank();
          return drop_express(same, *incoming, e);
        } catch (const std::exception& e) {
          host_.log(dropped_, BP_LOG_WARN, e.what());
          return drop_express(same, *incoming, sdk::Failure(BP_RESOURCE, e.what(), from));
        }
        read_express(same, incoming);
      });
}

// Delivers the goodbyes that waited for the message that has arrived.
void Receiver::count_express(const IncomingPipe& incoming) {
  std::vector<Goodbye> due;
  {
    const std::lock_guard lock(mutex_);
    due = source(incoming.from).goodbyes.count(incoming.express);
  }
  hand_over(std::move(due));
}

// Delivers the goodbyes that waited for messages of this connection.
void Receiver::drop_express(const Express& express, const IncomingPipe& incoming, const sdk::Failure& why) {
  std::vector<Goodbye> due;
  {
    const std::lock_guard lock(mutex_);
    express_.erase(express);
    if (incoming.from >= 0) due = source(incoming.from).goodbyes.end(incoming.express);
  }
  express->close();
  hand_over(std::move(due));
  report_loss(incoming.from, incoming.express, why);
}

}  // namespace backplane::tensorpipe
