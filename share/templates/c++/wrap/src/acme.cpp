// acme-id, a backend for Backplane that wraps a blocking library (third_party/post).
//
// The messenger converts sends and receives to frames and back. One worker per peer sends frames and one more receives
// them, so a call that blocks in the library delays no other peer.
#include <backplane/sdk/sdk.hpp>

#include "../third_party/post/post.h"

namespace sdk = backplane::sdk;

namespace {

constexpr int64_t kFlushTimeout = 2'000'000'000;  // nanoseconds that destroy waits for slow peers
constexpr int kConnectStep = 100;                 // milliseconds until an abort of init is noticed

using AcmePost = std::unique_ptr<post, decltype(&post_close)>;

// Sends the messenger's frames for one peer. Each new frame starts it, unless it is already started.
struct AcmeSender {
  sdk::Workers worker{1};
  std::atomic<bool> is_started = false;
};

class AcmeGroup final : public sdk::ProcessGroup {
 public:
  explicit AcmeGroup(const sdk::Context& context)
      : messenger_(context.rank, context.world_size, [this](int32_t peer) { start_sender(peer); }),
        post_(open(context)),
        senders_(static_cast<size_t>(context.world_size)) {
    // Threads start here, where a failure can be reported.
    for (AcmeSender& sender : senders_) sender.worker.submit([] {});
    receiver_.submit([this] { receive(); });
  }

  ~AcmeGroup() override {
    messenger_.flush(kFlushTimeout);
    post_interrupt(post_.get());  // unblocks the workers, which are then joined
  }

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override { return messenger_.submit(op); }

  void abort(const sdk::Failure& why) noexcept override {
    messenger_.abort(why);
    post_interrupt(post_.get());
  }

  const void* extension(std::string_view id) override {
    if (id == BP_EXT_NOTIFY) return sdk::notify_table();
    return id == BP_EXT_PROBE ? messenger_.probe_table() : nullptr;
  }

 private:
  // Opens this rank's office and connects it to every other rank's.
  static AcmePost open(const sdk::Context& context) {
    const sdk::Deadline deadline = sdk::Deadline::after(context.timeout_ns);
    char mine[POST_ADDRESS_SIZE] = "";
    AcmePost office(post_open(context.rank, context.world_size, mine), &post_close);
    if (!office) throw sdk::Failure(BP_RESOURCE, "acme-id: cannot open a post office", -1, errno);
    context.host.store_set("post." + std::to_string(context.rank), mine);
    for (int32_t peer = 0; peer < context.world_size; ++peer) {
      if (peer == context.rank) continue;
      const std::string address = value_of(context, "post.", peer, deadline);
      int code = ETIMEDOUT;
      while (code == ETIMEDOUT && !deadline.passed() && !context.host.abort_requested()) {
        code = post_connect(office.get(), peer, address.c_str(), kConnectStep);
      }
      if (context.host.abort_requested()) throw sdk::Failure(BP_CANCELLED, "acme-id: the group is being aborted");
      if (code != 0) {
        throw sdk::Failure(code == ETIMEDOUT ? BP_TIMEOUT : BP_PEER_LOST,
                           "acme-id: cannot reach rank " + std::to_string(peer) + "; is it on this host?", peer, code);
      }
    }
    await_ranks(context, deadline);
    return office;
  }

  // No office may close before all ranks have connected to it.
  static void await_ranks(const sdk::Context& context, const sdk::Deadline& deadline) {
    context.host.store_set("open." + std::to_string(context.rank), "");
    for (int32_t peer = 0; peer < context.world_size; ++peer) value_of(context, "open.", peer, deadline);
  }

  // The address that a peer publishes.
  static std::string value_of(const sdk::Context& context, const char* key, int32_t peer,
                              const sdk::Deadline& deadline) {
    try {
      return context.host.store_get(key + std::to_string(peer), deadline.left_ns());
    } catch (const sdk::Failure& why) {  // the store's error does not name the peer
      throw sdk::Failure(why.status(),
                         "acme-id: rank " + std::to_string(peer) + " has not published its address: " + why.what(),
                         peer);
    }
  }

  // Called on any thread, under the messenger's locks: only submits the work.
  void start_sender(int32_t peer) noexcept {
    AcmeSender& sender = senders_[static_cast<size_t>(peer)];
    if (sender.is_started.exchange(true)) return;
    const int32_t status = sdk::guarded(nullptr, [this, peer, &sender] {
      sender.worker.submit([this, peer] { send_all(peer); });
      return BP_OK;
    });
    if (status != BP_OK) sender.is_started = false;  // no memory: the next frame retries
  }

  void send_all(int32_t peer) {
    sdk::Messenger::Bytes frame;
    senders_[static_cast<size_t>(peer)].is_started = false;  // a frame queued from here on starts this again
    while (messenger_.next(peer, frame)) {
      // The peer has closed: the receiver reads its remaining messages and then the end of file.
      if (post_send(post_.get(), peer, frame.data(), frame.size()) != 0) return messenger_.not_carried(peer);
    }
  }

  void receive() {
    for (;;) {
      int peer = -1;
      void* data = nullptr;
      size_t size = 0;
      const int code = post_recv(post_.get(), &peer, &data, &size);
      if (code == ECANCELED) return;
      if (code == EPIPE) {
        messenger_.lost(peer, {BP_PEER_LOST, "acme-id: rank " + std::to_string(peer) + " has closed its office", peer});
      } else if (code != 0) {
        return messenger_.abort({BP_INTERNAL, "acme-id: post_recv failed, errno " + std::to_string(code), -1, code});
      } else {
        take_in(peer, {static_cast<std::byte*>(data), size});
        free(data);
      }
    }
  }

  void take_in(int32_t peer, std::span<const std::byte> frame) {
    try {
      messenger_.arrived(peer, frame);
    } catch (const sdk::Failure& why) {
      messenger_.lost(peer, why);
    }
  }

  sdk::Messenger messenger_;
  AcmePost post_;
  std::vector<AcmeSender> senders_;  // by rank
  sdk::Workers receiver_{1};         // last: its thread uses the members above
};

struct AcmeBackend {
  static constexpr const char* id = "acme-id";
  static constexpr const char* version = "0.1.0";
  static constexpr const char* summary = "sends and receives over the library post";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  // BOUNDED: no call blocks beyond its deadline, so the core calls the backend on the caller's thread.
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_BOUNDED;
  static constexpr std::array<bp_option, 0> options = {};
  static constexpr std::array capabilities = {sdk::moves(BP_SEND), sdk::moves(BP_RECV)};

  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<AcmeGroup>(context);
  }
};

}  // namespace

BACKPLANE_PLUGIN("acme-id's author", AcmeBackend)
