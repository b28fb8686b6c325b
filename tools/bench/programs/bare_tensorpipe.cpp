// SPDX-License-Identifier: Apache-2.0
#include "programs/bare_tensorpipe.hpp"

#include <tensorpipe/tensorpipe.h>
#include <unistd.h>

#include <future>
#include <stdexcept>

namespace backplane::bench {
namespace {

void require(const tensorpipe::Error& error) {
  if (error) throw std::runtime_error("TensorPipe: " + error.what());
}

std::shared_ptr<tensorpipe::Context> make_context(const std::string& transport) {
  auto context = std::make_shared<tensorpipe::Context>();
  if (transport == "uv") context->registerTransport(0, "uv", tensorpipe::transport::uv::create());
#if TENSORPIPE_HAS_SHM_TRANSPORT
  if (transport == "shm") context->registerTransport(200, "shm", tensorpipe::transport::shm::create());
#endif
  context->registerChannel(1000, "basic", tensorpipe::channel::basic::create());
#if TENSORPIPE_HAS_CMA_CHANNEL
  context->registerChannel(1200, "cma", tensorpipe::channel::cma::create());
#endif
  return context;
}

constexpr const char* kNull = "null";  // the payload of a call without arguments

tensorpipe::Message message_of(uint8_t* data, size_t bytes) {
  tensorpipe::Message message;
  message.payloads.push_back({const_cast<char*>(kNull), 4, ""});
  if (bytes > 0) message.tensors.push_back({tensorpipe::CpuBuffer{data}, bytes, {}, ""});
  return message;
}

// Returns each message, from the same memory each time.
void echo(const std::shared_ptr<tensorpipe::Pipe>& pipe, const std::shared_ptr<std::vector<uint8_t>>& memory) {
  pipe->readDescriptor(
      [weak = std::weak_ptr(pipe), memory](const tensorpipe::Error& error, const tensorpipe::Descriptor& descriptor) {
        const auto same = weak.lock();
        if (!same || error) return;
        const auto payload = std::make_shared<std::vector<char>>(descriptor.payloads[0].length);
        const size_t bytes = descriptor.tensors.empty() ? 0 : descriptor.tensors[0].length;
        if (memory->size() < bytes) memory->resize(bytes);
        tensorpipe::Allocation allocation;
        allocation.payloads.push_back({payload->data()});
        if (bytes > 0) allocation.tensors.push_back({tensorpipe::CpuBuffer{memory->data()}});
        same->read(allocation, [weak, payload, memory, bytes](const tensorpipe::Error& failed) {
          const auto pipe_there = weak.lock();
          if (!pipe_there || failed) return;
          pipe_there->write(message_of(memory->data(), bytes), [memory](const tensorpipe::Error&) {});
        });
        echo(same, memory);
      });
}

}  // namespace

struct BareTensorPipe::State {
  std::shared_ptr<tensorpipe::Context> context;
  std::shared_ptr<tensorpipe::Listener> listener;
  std::shared_ptr<tensorpipe::Pipe> pipe;
};

BareTensorPipe::BareTensorPipe(int rank, Store& store, const std::string& transport)
    : state_(std::make_unique<State>()) {
  state_->context = make_context(transport);
  if (rank == 0) {
    state_->pipe = state_->context->connect(store.get("url"));
    return;
  }
  const std::string address =
      transport == "uv" ? "uv://127.0.0.1:0" : "shm://backplane-bench-" + std::to_string(::getpid());
  state_->listener = state_->context->listen({address});
  state_->listener->accept([this](const tensorpipe::Error& error, const std::shared_ptr<tensorpipe::Pipe>& pipe) {
    if (error) return;
    state_->pipe = pipe;
    echo(pipe, std::make_shared<std::vector<uint8_t>>());
  });
  store.set("url", state_->listener->url(transport));
}

BareTensorPipe::~BareTensorPipe() {
  state_->context->close();
  state_->context->join();
}

void BareTensorPipe::round_trip(std::vector<uint8_t>* data, std::vector<uint8_t>* reply) {
  std::promise<tensorpipe::Error> done;
  tensorpipe::Pipe& pipe = *state_->pipe;
  char payload[4] = {};
  pipe.write(message_of(data->data(), data->size()), [](const tensorpipe::Error&) {});
  pipe.readDescriptor([&](const tensorpipe::Error& error, const tensorpipe::Descriptor&) {
    if (error) return done.set_value(error);
    tensorpipe::Allocation allocation;
    allocation.payloads.push_back({payload});
    if (!data->empty()) allocation.tensors.push_back({tensorpipe::CpuBuffer{reply->data()}});
    pipe.read(allocation, [&done](const tensorpipe::Error& failed) { done.set_value(failed); });
  });
  require(done.get_future().get());
}

}  // namespace backplane::bench
