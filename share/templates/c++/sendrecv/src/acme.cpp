// acme-id, a backend for Backplane with send and recv. The core implements every collective over them.
#include <backplane/sdk/sdk.hpp>

#include "transport.hpp"

namespace {

class AcmeGroup final : public sdk::ProcessGroup {
 public:
  explicit AcmeGroup(const sdk::Context& context) : transport_(context) {}

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override { return transport_.messenger().submit(op); }
  void abort(const sdk::Failure& why) noexcept override { transport_.messenger().abort(why); }

  const void* extension(std::string_view id) override {
    if (id == BP_EXT_NOTIFY) return sdk::notify_table();
    return id == BP_EXT_PROBE ? transport_.messenger().probe_table() : nullptr;
  }

 private:
  AcmeTransport transport_;
};

struct AcmeBackend {
  static constexpr const char* id = "acme-id";
  static constexpr const char* version = "0.1.0";
  static constexpr const char* summary = "sends and receives over TCP";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  // BOUNDED: no call blocks beyond its deadline, so the core calls the backend on the caller's thread.
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_BOUNDED;
  static constexpr std::array options = {
      sdk::option({.key = "address",
                   .default_value = "",
                   .help = "numeric address of this host that the others reach; empty: the one from which this rank "
                           "reaches the store, else 127.0.0.1"})};
  static constexpr std::array capabilities = {sdk::moves(BP_SEND), sdk::moves(BP_RECV)};

  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<AcmeGroup>(context);
  }
};

}  // namespace

BACKPLANE_PLUGIN("acme-id's author", AcmeBackend)
