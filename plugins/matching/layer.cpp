// SPDX-License-Identifier: Apache-2.0
#include "layer.hpp"

#include <algorithm>
#include <optional>

#include "transport.hpp"

namespace backplane::matching {
namespace {

constexpr int64_t kFlushTimeout = INT64_C(2'000'000'000);  // nanoseconds, for messages sent but not yet on their way

// Whether the agent declares the operation for bytes in host memory.
bool declares(const bp_agent& agent, uint32_t op) {
  const auto* const end = agent.capabilities + agent.capability_count;
  return std::any_of(agent.capabilities, end, [op](const bp_capability* each) {
    return each->op == op && (each->dtypes & BP_BIT(BP_U8)) != 0 && (each->memory & BP_BIT(BP_HOST)) != 0;
  });
}

class MatchingLayer final : public sdk::Layer {
 public:
  explicit MatchingLayer(const sdk::Context& context)
      : Layer(context),
        messenger_(context.rank, context.world_size,
                   [this](int32_t peer) {
                     if (transport_) transport_->ready(peer);
                   }),
        probe_(*this) {
    if (context.inner_backend == nullptr) {
      throw sdk::Failure(BP_UNSUPPORTED, "the layer matching needs a core that tells which backend it wraps");
    }
    has_messages_ = declares(inner().agent(), BP_SEND) && declares(inner().agent(), BP_RECV);
    if (context.world_size == 1 || !has_messages_) return;
    transport_.emplace(inner(), *context.inner_backend, context.rank, context.world_size, messenger_);
    transport_->start([this](const sdk::Failure& why) { abort(why); });
  }
  ~MatchingLayer() override { messenger_.flush(kFlushTimeout); }

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    if (op.kind != BP_SEND && op.kind != BP_RECV) return inner().submit(op);
    try {
      if (op.input.memory != BP_HOST || op.output.memory != BP_HOST) {
        throw sdk::Failure(BP_UNSUPPORTED, "the layer matching sends and receives host memory only");
      }
      if (!has_messages_) {
        throw sdk::Failure(BP_UNSUPPORTED, "the backend in the layer matching does not send and receive host memory");
      }
      watch(op.peer);
    } catch (...) {
      if (op.message != nullptr) messenger_.drop(op.message);
      throw;
    }
    return messenger_.submit(op);
  }
  void abort(const sdk::Failure& why) noexcept override {
    messenger_.abort(why);
    inner().abort(why);
  }
  const void* extension(std::string_view id) override {
    if (id == BP_EXT_PROBE) return probe_.table();
    if (id == BP_EXT_NOTIFY) return sdk::notify_table();
    return Layer::extension(id);
  }

 private:
  // The messenger's probe; reports the loss of the peers that it names.
  class Probe final : public sdk::ProbeTable {
   public:
    explicit Probe(MatchingLayer& layer) : layer_(layer) {}
    bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) override {
      layer_.watch(peer);
      return layer_.messenger_.probe(peer, tag, result);
    }
    void drop(bp_message* message) noexcept override { layer_.messenger_.drop(message); }

   private:
    MatchingLayer& layer_;
  };

  void watch(int32_t peer) {
    if (transport_) transport_->watch(peer);
  }

  sdk::Messenger messenger_;
  Probe probe_;
  bool has_messages_ = false;
  std::optional<FrameTransport> transport_;  // last: it uses the messenger
};

}  // namespace

std::unique_ptr<sdk::ProcessGroup> make_layer(const sdk::Context& context) {
  return std::make_unique<MatchingLayer>(context);
}

}  // namespace backplane::matching
