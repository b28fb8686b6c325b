// SPDX-License-Identifier: Apache-2.0
//
// Gloo without Backplane as a peer: its collectives over TCP on the loopback interface. The variable ALGORITHM, ring
// (default) or bcube, selects the algorithm of all_reduce.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "measure/measure.hpp"
#include "peers/driver.hpp"

namespace {

using backplane::bench::Op;
using backplane::bench::Row;
using backplane::bench::Step;
using backplane::bench::Test;

int number(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) throw std::runtime_error(std::string(variable) + " is not set");
  return std::atoi(value);
}

gloo::AllreduceOptions::Algorithm algorithm() {
  const char* name = std::getenv("ALGORITHM");
  const bool bcube = name != nullptr && std::string(name) == "bcube";
  return bcube ? gloo::AllreduceOptions::Algorithm::BCUBE : gloo::AllreduceOptions::Algorithm::RING;
}

constexpr auto kSum = static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>);

class GlooTarget final : public backplane::bench::Target {
 public:
  explicit GlooTarget(const std::string& directory) : rank_(number("RANK")), size_(number("WORLD_SIZE")) {
    gloo::transport::tcp::attr where;
    where.iface = "lo";
    gloo::rendezvous::FileStore store(directory);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(where);
    context->connectFullMesh(store, device);
    context_ = context;
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  // Gloo has no asynchronous collectives, and reduce_scatter only for buffers at fixed addresses.
  bool offers(Test test) const override { return test != Test::kReduceScatter && test != Test::kOverlap; }

  void prepare(const Row&, float* in, uint64_t in_count, float* out, uint64_t out_count) override {
    in_ = context_->createUnboundBuffer(in, in_count * sizeof(float));
    out_ = context_->createUnboundBuffer(out, out_count * sizeof(float));
    begin_in_ = in;
    begin_out_ = out;
  }

  void run(const Step& step) override {
    switch (step.op) {
      case Op::kSend:
      case Op::kRecv:
        start(step);
        return finish();
      case Op::kBarrier: {
        gloo::BarrierOptions options(context_);
        options.setTag(++tag_);
        return gloo::barrier(options);
      }
      case Op::kAllReduce: {
        gloo::AllreduceOptions options(context_);
        options.setOutput(step.in, step.count);
        options.setAlgorithm(algorithm_);
        options.setReduceFunction(kSum);
        options.setTag(++tag_);
        return gloo::allreduce(options);
      }
      case Op::kReduce: {
        gloo::ReduceOptions options(context_);
        options.setInput(step.in, step.count);
        options.setOutput(step.out, step.count);
        options.setReduceFunction(kSum);
        options.setRoot(step.root);
        options.setTag(++tag_);
        return gloo::reduce(options);
      }
      default:
        return move(step);
    }
  }

  void start(const Step& step) override {
    const bool sends = step.op == Op::kSend;
    const size_t offset = static_cast<size_t>(sends ? step.in - begin_in_ : step.out - begin_out_) * sizeof(float);
    if (sends) {
      in_->send(step.peer, kMessages, offset, step.count * sizeof(float));
    } else {
      out_->recv(step.peer, kMessages, offset, step.count * sizeof(float));
    }
    ++(sends ? sending_ : receiving_);
  }
  void finish() override {
    for (; sending_ > 0; --sending_) in_->waitSend();
    for (; receiving_ > 0; --receiving_) out_->waitRecv();
  }

 private:
  void move(const Step& step) {
    const auto size = static_cast<size_t>(size_);
    const bool at_root = rank_ == step.root;
    if (step.op == Op::kBroadcast) {
      gloo::BroadcastOptions options(context_);
      options.setOutput(step.in, step.count);
      options.setRoot(step.root);
      options.setTag(++tag_);
      gloo::broadcast(options);
    } else if (step.op == Op::kGather) {
      gloo::GatherOptions options(context_);
      options.setInput(step.in, step.count);
      if (at_root) options.setOutput(step.out, step.count * size);
      options.setRoot(step.root);
      options.setTag(++tag_);
      gloo::gather(options);
    } else if (step.op == Op::kScatter) {
      gloo::ScatterOptions options(context_);
      std::vector<float*> blocks;
      for (size_t i = 0; at_root && i < size; ++i) blocks.push_back(step.in + i * step.count);
      if (at_root) options.setInputs(blocks, step.count);
      options.setOutput(step.out, step.count);
      options.setRoot(step.root);
      options.setTag(++tag_);
      gloo::scatter(options);
    } else if (step.op == Op::kAllGather) {
      gloo::AllgatherOptions options(context_);
      options.setInput(step.in, step.count);
      options.setOutput(step.out, step.count * size);
      options.setTag(++tag_);
      gloo::allgather(options);
    } else if (step.op == Op::kAllToAll) {
      gloo::AlltoallOptions options(context_);
      options.setInput(step.in, step.count * size);
      options.setOutput(step.out, step.count * size);
      options.setTag(++tag_);
      gloo::alltoall(options);
    } else {
      throw std::logic_error("gloo has no such operation");
    }
  }

  static constexpr uint64_t kMessages = uint64_t{1} << 60;  // a slot outside the tags of collectives
  const int rank_;
  const int size_;
  const gloo::AllreduceOptions::Algorithm algorithm_ = algorithm();
  std::shared_ptr<gloo::Context> context_;
  std::unique_ptr<gloo::transport::UnboundBuffer> in_;
  std::unique_ptr<gloo::transport::UnboundBuffer> out_;
  float* begin_in_ = nullptr;
  float* begin_out_ = nullptr;
  int sending_ = 0;
  int receiving_ = 0;
  uint32_t tag_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
  return backplane::bench::drive(count, arguments, "raw-gloo", [](const std::vector<std::string>& own) {
    if (own.empty()) throw std::invalid_argument("the last argument must be a directory for the rendezvous");
    return std::make_unique<GlooTarget>(own.front());
  });
}
