// SPDX-License-Identifier: Apache-2.0
#include "check/api_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <sstream>
#include <utility>

#include "backplane/process_group.hpp"
#include "backplane/sdk/first_failure.hpp"
#include "backplane/sdk/sdk.hpp"
#include "common/failure.hpp"

namespace backplane::tool {
namespace {

constexpr uint32_t kTagBits = 32;  // the API's tags are below 2^32

// The backend below, as the API takes it: "zmq?transport=ipc".
std::string& selection() {
  static std::string text;
  return text;
}

// The ids of the backends below: one, or those of a composite.
std::vector<std::string> backends_below() {
  std::vector<std::string> ids;
  std::istringstream parts(selection());
  for (std::string part; std::getline(parts, part, '+');) ids.push_back(part.substr(0, part.find('?')));
  return ids;
}

// The harness's table while the group exists.
struct Gate {
  explicit Gate(const sdk::Host& table) : host(table) {}
  template <typename Body>
  auto pass(const Body& body) {
    const std::shared_lock lock(mutex);
    try {
      if (!open) throw sdk::Failure(BP_CANCELLED, "the group of this store has ended");
      return body(host);
    } catch (const sdk::Failure& why) {
      bp_error err;
      bp_error_init(&err);
      bp_error_set(&err, why.status(), why.native_code(), why.peer_rank(), why.what());
      throw Error(err);
    }
  }

  std::shared_mutex mutex;
  bool open = true;
  const sdk::Host host;
};

std::string compare_set(const sdk::Host& host, const std::string& key, std::string_view expected,
                        std::string_view desired) {
  std::string value(size_t{64} << 10, '\0');
  uint64_t size = 0;
  bp_error err;
  bp_error_init(&err);
  const bp_host* const table = host.get();
  const int32_t status =
      table->store_compare_set(table->ctx, key.c_str(), expected.data(), expected.size(), desired.data(),
                               desired.size(), value.data(), value.size(), &size, &err);
  if (status != BP_OK) throw sdk::Failure(err);
  value.resize(size);
  return value;
}

// The store that the harness offers, as the store of a group. The core may still be in a call when the group has ended,
// and the harness's table is gone then: the destructor waits for calls, and later ones fail.
class HarnessStore {
 public:
  explicit HarnessStore(const sdk::Host& host) : gate_(std::make_shared<Gate>(host)) {}
  ~HarnessStore() {
    const std::unique_lock lock(gate_->mutex);
    gate_->open = false;
  }
  HarnessStore(const HarnessStore&) = delete;
  HarnessStore& operator=(const HarnessStore&) = delete;

  Store store() const {
    StoreCallbacks calls;
    calls.name = "the harness's store";
    calls.set = [gate = gate_](const std::string& key, std::string_view value, Timeout) {
      gate->pass([&](const sdk::Host& host) { host.store_set(key, value); });
    };
    calls.get = [gate = gate_](const std::string& key, Timeout timeout) {
      return std::optional(gate->pass([&](const sdk::Host& host) { return host.store_get(key, timeout.count()); }));
    };
    calls.add = [gate = gate_](const std::string& key, int64_t delta, Timeout) {
      return gate->pass([&](const sdk::Host& host) { return host.store_add(key, delta); });
    };
    calls.compare_set = [gate = gate_](const std::string& key, std::string_view expected, std::string_view desired,
                                       Timeout) {
      return gate->pass([&](const sdk::Host& host) { return compare_set(host, key, expected, desired); });
    };
    calls.remove = [gate = gate_](const std::string& key, Timeout) {
      return gate->pass([&](const sdk::Host& host) { return host.store_delete(key); });
    };
    return Store::custom(std::move(calls));
  }

 private:
  const std::shared_ptr<Gate> gate_;
};

// Runs a call of the API. After an abort its cause counts, as the plugin ABI requires; the API reports a status of its
// own.
template <typename Body>
auto called(const sdk::FirstFailure& aborted, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    aborted.check();
    throw sdk::Failure(static_cast<int32_t>(error.status()), error.what(), error.peer_rank(), error.native_code());
  }
}

Blocks blocks_of(const uint64_t* counts, const uint64_t* displs, int world_size) {
  Blocks blocks;
  if (counts != nullptr) blocks.counts.assign(counts, counts + world_size);
  if (displs != nullptr) blocks.displs.assign(displs, displs + world_size);
  return blocks;
}

// The call of the API that performs the operation.
Work start(ProcessGroup& group, const bp_op& op, const CallOptions& options) {
  const auto dtype = static_cast<DType>(op.dtype);
  const ConstBuffer in(op.input.data, op.input.count, dtype, {op.input.memory, op.input.device});
  const Buffer out(op.output.data, op.output.count, dtype, {op.output.memory, op.output.device});
  const auto reduce_op = static_cast<ReduceOp>(op.reduce_op);
  const auto ins = [&] { return blocks_of(op.in_counts, op.in_displs, group.world_size()); };
  const auto outs = [&] { return blocks_of(op.out_counts, op.out_displs, group.world_size()); };
  if (op.scalar != nullptr) {  // each rank's factor; the API has a call for all_reduce alone, of a C++ type
    bp_op copy = op;
    return group.run(std::move(copy), options);
  }
  switch (op.kind) {
    case BP_BARRIER:
      return group.barrier(options);
    case BP_BROADCAST:
      return group.broadcast(out, op.root, options);
    case BP_REDUCE:
      return group.reduce(in, out, op.root, reduce_op, options);
    case BP_ALL_REDUCE:
      return group.all_reduce(in, out, reduce_op, options);
    case BP_GATHER:
      return group.gather(in, out, op.root, options);
    case BP_GATHERV:
      return group.gatherv(in, out, outs(), op.root, options);
    case BP_SCATTER:
      return group.scatter(in, out, op.root, options);
    case BP_SCATTERV:
      return group.scatterv(in, ins(), out, op.root, options);
    case BP_ALL_GATHER:
      return group.all_gather(in, out, options);
    case BP_ALL_GATHERV:
      return group.all_gatherv(in, out, outs(), options);
    case BP_REDUCE_SCATTER:
      return group.reduce_scatter(in, out, reduce_op, options);
    case BP_REDUCE_SCATTERV:
      return group.reduce_scatterv(in, ins(), out, reduce_op, options);
    case BP_ALL_TO_ALL:
      return group.all_to_all(in, out, options);
    case BP_ALL_TO_ALLV:
      return group.all_to_allv(in, ins(), out, outs(), options);
    case BP_SCAN:
      return group.scan(in, out, reduce_op, options);
    case BP_EXSCAN:
      return group.exscan(in, out, reduce_op, options);
    case BP_SEND:
      return group.send(in, op.peer, static_cast<uint32_t>(op.tag), options);
    default:
      return group.recv(out, op.peer, op.tag, options);
  }
}

class ApiWork final : public sdk::Work {
 public:
  ApiWork(backplane::Work work, bp_result* result, std::shared_ptr<const sdk::FirstFailure> aborted)
      : work_(std::move(work)), result_(result), aborted_(std::move(aborted)) {}

  bool wait(int64_t timeout_ns) override {
    if (failure_) throw *failure_;
    if (done_) return true;
    try {
      done_ = called(*aborted_,
                     [&] { return timeout_ns == 0 ? work_.is_completed() : work_.wait_for(Timeout(timeout_ns)); });
    } catch (const sdk::Failure& why) {
      failure_.emplace(why);
    }
    if (done_ || failure_) report();
    if (failure_) throw *failure_;
    return done_;
  }
  void cancel() noexcept override { work_.cancel(); }
  bool on_end(sdk::Notice notice) override {
    work_.on_done([notice](const Error*) mutable { notice.give(); });
    return true;
  }

 private:
  void report() {
    if (result_ == nullptr) return;
    const Received received = work_.received();
    result_->source = received.source;
    result_->bytes = received.bytes;
    result_->tag = received.tag;
  }

  backplane::Work work_;
  bp_result* const result_;
  const std::shared_ptr<const sdk::FirstFailure> aborted_;
  bool done_ = false;
  std::optional<sdk::Failure> failure_;
};

class ApiGroup final : public sdk::ProcessGroup, private sdk::ProbeTable {
 public:
  explicit ApiGroup(const sdk::Context& context)
      : store_(context.host),
        group_(called(*aborted_,
                      [this, &context] {
                        return backplane::ProcessGroup::create({.backend = selection(),
                                                                .rank = context.rank,
                                                                .world_size = context.world_size,
                                                                .store = store_.store(),
                                                                .name = context.name,
                                                                .timeout = Timeout(context.timeout_ns),
                                                                .device = context.device});
                      })),
        can_probe_(can_probe()) {}

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    const bool waits = (op.flags & BP_OP_SYNC) != 0;
    const CallOptions options = {.async_op = !waits, .timeout = Timeout(op.timeout_ns), .stream = op.stream};
    backplane::Work work = called(*aborted_, [&] {
      if (op.message == nullptr) return start(group_, op, options);
      const std::unique_ptr<Message> message(reinterpret_cast<Message*>(op.message));
      const Buffer out(op.output.data, op.output.count, static_cast<DType>(op.dtype));
      return group_.recv(out, std::move(*message), options);
    });
    auto made = std::make_unique<ApiWork>(std::move(work), op.result, aborted_);
    if (waits) made->wait(0);  // it has ended
    return waits ? nullptr : std::move(made);
  }
  void abort(const sdk::Failure& why) noexcept override {
    aborted_->raise_by_core(why);
    try {
      group_.abort(why.what());
    } catch (const Error&) {  // it has ended
    }
  }
  const void* extension(std::string_view id) override {
    if (id == BP_EXT_NOTIFY) return sdk::notify_table();
    if (id == BP_EXT_PROBE && can_probe_) return table();
    return nullptr;
  }

 private:
  // Called while no message can be there.
  bool can_probe() {
    try {
      group_.probe(group_.rank(), 0, Timeout(0));
    } catch (const Error& error) {
      return error.status() != Status::kUnsupported;
    }
    return true;
  }
  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) override {
    try {
      return called(*aborted_, [&] {
        auto taken = std::make_unique<Message>(group_.probe(peer, tag, Timeout(0)));
        const Received found = taken->info();
        result.source = found.source;
        result.bytes = found.bytes;
        result.tag = found.tag;
        return reinterpret_cast<bp_message*>(taken.release());
      });
    } catch (const sdk::Failure& why) {
      if (why.status() == BP_TIMEOUT) return nullptr;
      throw;
    }
  }
  void drop(bp_message* message) noexcept override { delete reinterpret_cast<Message*>(message); }

  const std::shared_ptr<sdk::FirstFailure> aborted_ = std::make_shared<sdk::FirstFailure>();
  const HarnessStore store_;
  backplane::ProcessGroup group_;
  const bool can_probe_;
};

struct Api {
  static constexpr const char* id = "api";
  static constexpr const char* version = "";  // the library's, once it is known
  static constexpr const char* summary = "groups of the C++ API";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags = BP_BACKEND_BOUNDED;
  static constexpr uint32_t tag_bits = kTagBits;
  static constexpr std::array<bp_option, 0> options = {};
  static constexpr uint64_t kScans = BP_ALL_REDUCE_OPS & ~BP_BIT(BP_AVG);
  static constexpr std::array capabilities = {
      sdk::moves(BP_SEND),
      sdk::moves(BP_RECV),
      sdk::moves(BP_BARRIER),
      sdk::moves(BP_BROADCAST),
      sdk::moves(BP_GATHER),
      sdk::moves(BP_GATHERV),
      sdk::moves(BP_SCATTER),
      sdk::moves(BP_SCATTERV),
      sdk::moves(BP_ALL_GATHER),
      sdk::moves(BP_ALL_GATHERV),
      sdk::moves(BP_ALL_TO_ALL),
      sdk::moves(BP_ALL_TO_ALLV),
      sdk::reduces(BP_REDUCE, BP_ALL_DTYPES, BP_ALL_REDUCE_OPS),
      sdk::reduces(BP_ALL_REDUCE, BP_ALL_DTYPES, BP_ALL_REDUCE_OPS),
      sdk::reduces(BP_REDUCE_SCATTER, BP_ALL_DTYPES, BP_ALL_REDUCE_OPS),
      sdk::reduces(BP_REDUCE_SCATTERV, BP_ALL_DTYPES, BP_ALL_REDUCE_OPS),
      sdk::reduces(BP_SCAN, BP_ALL_DTYPES, kScans),
      sdk::reduces(BP_EXSCAN, BP_ALL_DTYPES, kScans),
  };
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<ApiGroup>(context);
  }
};

bp_backend& api_backend() {
  static bp_backend backend = sdk::detail::Tables<Api>::backend;
  return backend;
}

std::string percent_encoded(const std::string& value) {
  std::string text;
  for (const char c : value) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("-_./").find(c) != std::string_view::npos;
    text += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return text;
}

}  // namespace

const bp_plugin* api_plugin(const std::string& below, const std::map<std::string, std::string>& options) {
  selection() = below;
  static const std::string name = below;
  static const bp_backend* const backends[] = {&api_backend()};
  static const bp_plugin plugin = {sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "Backplane (C++ API)", backends, 1, 0};
  api_backend().id = name.c_str();
  api_backend().version = bp_version();
  for (const auto& [key, value] : options) {
    selection() += fmt::format("{}{}={}", selection() == below ? '?' : '&', key, percent_encoded(value));
  }
  return &plugin;
}

std::map<std::string, conformance::KnownFailure> api_differences() {
  const conformance::KnownFailure no_internal = {"programs cannot send with the tags of the core"};
  const conformance::KnownFailure no_size = {
      "a Work that failed has no source and size of a message that was too long"};
  return {{"p2p.any-tag", no_internal},
          {"probe.none", no_internal},
          {"p2p.truncation", no_size},
          {"probe.too-small", no_size}};
}

void load_api_backend() {
  constexpr uint32_t kAbilities =
      BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG | BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS;
  constexpr uint32_t kLimits = BP_BACKEND_LOCAL | BP_BACKEND_ONE_PROCESS | BP_BACKEND_ONE_WORLD;
  uint32_t abilities = kAbilities;
  for (const std::string& id : backends_below()) {
    bp_error err;
    bp_error_init(&err);
    const bp_backend_type* type = nullptr;
    if (bp_backend_lookup(nullptr, id.c_str(), &type, &err) != BP_OK) throw Failure(kFailed, err.text);
    const bp_backend& below = *bp_backend_type_descriptor(type);
    abilities &= below.flags;
    api_backend().flags |= below.flags & kLimits;
    if (below.tag_bits == 0) continue;
    api_backend().tag_bits = std::min(api_backend().tag_bits, below.tag_bits - 1);  // the core's has one more
  }
  api_backend().flags |= abilities;
}

}  // namespace backplane::tool
