// acme-id, a backend for Backplane with send, recv, all_reduce, broadcast and barrier. The core implements the other
// collectives over send and recv.
#include <backplane/sdk/sdk.hpp>

#include "collectives.hpp"
#include "transport.hpp"

namespace {

class AcmeGroup final : public sdk::ProcessGroup {
 public:
  explicit AcmeGroup(const sdk::Context& context)
      : transport_(context), collectives_(context, transport_.messenger()) {}

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    if (op.kind == BP_SEND || op.kind == BP_RECV) return transport_.messenger().submit(op);
    if ((op.flags & BP_OP_SYNC) != 0) {  // the caller blocks, so no other thread is needed
      collectives_.run(op, sdk::Deadline::after(op.timeout_ns), {});
      return nullptr;
    }
    return workers_.submit([this, op](const std::stop_token& stop) {
      collectives_.run(op, sdk::Deadline::after(BP_NO_TIMEOUT), stop);  // the core enforces the deadline and cancels
    });
  }

  void abort(const sdk::Failure& why) noexcept override {
    transport_.messenger().abort(why);  // ends the operations that the workers wait for
    workers_.abort(why);
  }

  const void* extension(std::string_view id) override {
    if (id == BP_EXT_NOTIFY) return sdk::notify_table();
    return id == BP_EXT_PROBE ? transport_.messenger().probe_table() : nullptr;
  }

 private:
  AcmeTransport transport_;
  AcmeCollectives collectives_;
  sdk::Workers workers_{1};  // last: destroyed first
};

constexpr uint64_t kReduceOps =
    BP_ALL_REDUCE_OPS & ~(BP_BIT(BP_AVG) | BP_BIT(BP_PREMUL_SUM));  // the core implements these two

struct AcmeBackend {
  static constexpr const char* id = "acme-id";
  static constexpr const char* version = "0.1.0";
  static constexpr const char* summary = "sends, receives and a few collectives over TCP";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  // BOUNDED: no call blocks beyond its deadline, so the core calls the backend on the caller's thread.
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_BOUNDED;
  static constexpr std::array options = {
      sdk::option({.key = "address",
                   .default_value = "",
                   .help = "numeric address of this host that the others reach; empty: the one from which this rank "
                           "reaches the store, else 127.0.0.1"})};
  static constexpr std::array capabilities = {sdk::moves(BP_SEND), sdk::moves(BP_RECV), sdk::moves(BP_BARRIER),
                                              sdk::moves(BP_BROADCAST),
                                              sdk::reduces(BP_ALL_REDUCE, BP_ALL_DTYPES, kReduceOps)};

  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<AcmeGroup>(context);
  }
};

}  // namespace

BACKPLANE_PLUGIN("acme-id's author", AcmeBackend)
