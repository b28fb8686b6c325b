// SPDX-License-Identifier: Apache-2.0
#include "layer.hpp"

#include <algorithm>

#include "backplane/abi/ext/calls.h"
#include "clock.hpp"
#include "records.hpp"
#include "writer.hpp"

namespace backplane::trace {
namespace {

// The data of an operation in flight.
struct OperationStart {
  explicit OperationStart(const bp_op& op)
      : kind(known_kind(op)),
        dtype(op.dtype),
        other(op.kind == BP_SEND || op.kind == BP_RECV ? op.peer
              : rooted(op.kind)                        ? op.root
                                                       : -1),
        seq(op.seq),
        bytes(std::max(op.input.count, op.output.count) * (op.kind == BP_BARRIER ? 0 : bp_dtype_size(op.dtype))),
        result(op.kind == BP_RECV ? op.result : nullptr),
        begin_ns(now_ns(CLOCK_MONOTONIC)) {}

  static bool rooted(uint32_t kind) {
    return kind == BP_BROADCAST || kind == BP_REDUCE || kind == BP_GATHER || kind == BP_GATHERV || kind == BP_SCATTER ||
           kind == BP_SCATTERV;
  }

  uint32_t kind;
  uint32_t dtype;
  int32_t other;
  uint64_t seq;
  uint64_t bytes;
  const bp_result* result;  // of a recv, valid until its end
  int64_t begin_ns;
};

class TraceLayer final : public sdk::Layer {
 public:
  explicit TraceLayer(const sdk::Context& context) : Layer(context), records_(context), writer_(context, records_) {}

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    const OperationStart started(op);
    records_.statistics[started.kind].start();
    std::unique_ptr<sdk::Work> work;
    try {
      work = inner().submit(op);
    } catch (const sdk::Failure& failure) {
      end(started, failure.status());
      throw;
    }
    if (work == nullptr) {
      end(started, BP_OK);
      return nullptr;
    }
    const auto ended = [this, started](const sdk::Failure* failure) {
      end(started, failure == nullptr ? BP_OK : failure->status());
    };
    return std::make_unique<sdk::ObservedWork<decltype(ended)>>(std::move(work), ended);
  }

  const void* extension(std::string_view id) override { return id == BP_EXT_CALLS ? &calls_ : Layer::extension(id); }

  void abort(const sdk::Failure& why) noexcept override {
    inner().abort(why);
    writer_.note_abort();
  }

 private:
  void end(const bp_call& call) {
    const uint32_t kind = call.served != 0 ? kServedCall : kCall;
    const uint32_t number = records_.functions.number(call.function);
    Function& function = records_.functions.at(number);
    for (Counts* const counts : {&records_.statistics[kind], call.served != 0 ? &function.served : &function.made}) {
      counts->start();
      counts->end(call.status, call.request_bytes + call.answer_bytes, call.end_ns - call.begin_ns);
    }
    if (!records_.events) return;
    records_.events->add({call.begin_ns, call.end_ns, call.number, call.request_bytes, call.answer_bytes, kind, number,
                          call.peer, call.status});
  }

  void end(const OperationStart& started, int32_t status) {
    const int64_t end_ns = now_ns(CLOCK_MONOTONIC);
    const bool arrived = started.result != nullptr && status == BP_OK;
    const uint64_t bytes = arrived ? started.result->bytes : started.bytes;
    records_.statistics[started.kind].end(status, bytes, end_ns - started.begin_ns);
    if (records_.events) {
      records_.events->add(
          {started.begin_ns, end_ns, started.seq, bytes, 0, started.kind, started.dtype, started.other, status});
    }
  }

  static void report_ended(void* ctx, const bp_call* call) {
    bp_error err;
    bp_error_init(&err);
    sdk::guarded(&err, [=] {
      static_cast<TraceLayer*>(ctx)->end(*call);
      return BP_OK;
    });
  }
  static void report_joined(void* ctx, const bp_metrics_api* metrics) {
    static_cast<TraceLayer*>(ctx)->records_.worker.store(metrics);
  }

  const bp_calls_api calls_ = {sizeof(bp_calls_api), 0, this, report_ended, report_joined};
  Records records_;
  Writer writer_;
};

}  // namespace

std::unique_ptr<sdk::ProcessGroup> make_layer(const sdk::Context& context) {
  return std::make_unique<TraceLayer>(context);
}

}  // namespace backplane::trace
