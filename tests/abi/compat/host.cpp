// SPDX-License-Identifier: Apache-2.0
//
// A host of the minor of the ABI whose headers it is compiled with. It drives one backend of a plugin:
//
//     compat_host exact|longer PLUGIN.so BACKEND [LAYER.so LAYER[?KEY=VALUE]]...
//     compat_host exact|longer PLUGIN.so BACKEND --logs TEXT
//
// exact:  each struct has the size of these headers and ends at an inaccessible page.
// longer: each struct is longer, as those of a later minor are. The additional bytes are 0xAB.
//
// Three ranks, which are threads, execute init, messages, native collectives, failures, abort and destroy, through the
// layers if there are any. The first layer wraps the backend. With --logs the backend is only probed, and must log
// TEXT.
#include <dlfcn.h>

#include <algorithm>
#include <barrier>
#include <deque>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "host_table.hpp"
#include "options/option_value.hpp"

namespace {

using compat::Blackboard;
using compat::Guarded;
using compat::HostTable;

constexpr int32_t kWorld = 3;
constexpr int64_t kLong = 60'000'000'000;  // ns; never reached unless something is wrong
constexpr int64_t kShort = 30'000'000;     // ns; always reached
using Barrier = std::barrier<>;

void expect_ok(int32_t status, const bp_error* err, const char* what) {
  if (status == BP_OK) return;
  std::fprintf(stderr, "%s: status %d: %s\n", what, status, err->text);
  std::_Exit(1);
}

// A backend or a layer, and its options.
struct Member {
  const bp_backend* backend;
  backplane::core::KeyValues options;
};

// One rank's agents.
class Rank {
 public:
  // The backend, then the layers.
  Rank(const std::vector<Member>& stack, Blackboard& blackboard, Barrier& all, int32_t rank)
      : backend_(*stack.front().backend), all_(all), rank_(rank), host_(&blackboard, log_) {
    for (const Member& member : stack) start(*member.backend, member.options);
    COMPAT_CHECK(agents_.front()->kind == BP_KIND_PROCESS_GROUP);
  }

  void run() {
    all_.arrive_and_wait();
    messages();
    collectives();
    failures();
    all_.arrive_and_wait();
    abort();
    all_.arrive_and_wait();
    host_.end();
    for (auto agent = agents_.rbegin(); agent != agents_.rend(); ++agent) {
      static_cast<const bp_process_group_api*>((*agent)->api)->destroy((*agent)->self);
    }
  }

 private:
  void start(const bp_backend& backend, const backplane::core::KeyValues& options_given) {
    const auto pairs = backplane::core::complete_options(backend, options_given);
    std::vector<bp_key_value> values;
    for (const auto& [key, value] : pairs) values.push_back({key.c_str(), value.c_str()});
    bp_options* options = construct(backend, values);
    static constexpr int32_t kGlobalRanks[kWorld] = {0, 1, 2};
    Guarded<bp_init> init;
    init->rank = rank_;
    init->world_size = kWorld;
    init->device = -1;
    init->name = "compat";
    init->host = host_.get();
    init->options = options;
    init->values = values.data();
    init->value_count = static_cast<uint32_t>(values.size());
    init->kind = agents_.empty() ? BP_KIND_PROCESS_GROUP : BP_KIND_LAYER;
    init->inner = agents_.empty() ? nullptr : agents_.back().get();
    init->timeout_ns = kLong;
    init->global_ranks = kGlobalRanks;
    Guarded<bp_error> err;
    Guarded<bp_agent>& agent = agents_.emplace_back();
    expect_ok(backend.init(&backend, init.get(), agent.get(), err.get()), err.get(), "init");
    if (options != nullptr) backend.destroy_options(&backend, options);
    self_ = agent->self;
    api_ = static_cast<const bp_process_group_api*>(agent->api);
    COMPAT_CHECK(agent->rank == rank_ && agent->world_size == kWorld);
    COMPAT_CHECK(BP_HAS(api_, extension) && api_->extension(self_, "acme.nothing/1") == nullptr);
  }

  bp_options* construct(const bp_backend& backend, const std::vector<bp_key_value>& values) {
    if (backend.construct_options == nullptr) return nullptr;
    Guarded<bp_options_request> request;
    request->value_count = static_cast<uint32_t>(values.size());
    request->values = values.data();
    request->rpc_timeout_ns = kLong;
    request->init_method = "env://";
    Guarded<bp_error> err;
    bp_options* options = nullptr;
    expect_ok(backend.construct_options(&backend, request.get(), &options, err.get()), err.get(), "options");
    return options;
  }

  // An operation in flight, and the objects that must outlive it.
  struct Flight {
    Guarded<bp_op> op;
    Guarded<bp_result> result;
    Guarded<bp_error> err;
    bp_work* work = nullptr;
    int32_t status = BP_OK;  // of submit
  };

  static void begin(Flight& flight, uint32_t kind) {
    flight.op->kind = kind;
    flight.op->timeout_ns = kLong;
#if BP_ABI_MINOR >= 1
    flight.op->since_1_1 = 4711;  // what the layer `witness` expects
#endif
  }

  static void fill(Flight& flight, uint32_t kind, int32_t peer, uint64_t tag, void* data, uint64_t count) {
    begin(flight, kind);
    flight.op->dtype = BP_U8;
    flight.op->peer = peer;
    flight.op->tag = tag;
    (kind == BP_SEND ? flight.op->input : flight.op->output) = {data, count, BP_HOST, 0};
    if (kind == BP_RECV) flight.op->result = flight.result.get();
    flight.err->peer_rank = -1;
  }

  void submit(Flight& flight) {
    flight.status = api_->submit(self_, flight.op.get(), &flight.work, flight.err.get());
    COMPAT_CHECK(flight.status == BP_OK || flight.work == nullptr);
  }

  int32_t wait(Flight& flight, int64_t timeout_ns = kLong) {
    if (flight.work == nullptr) return flight.status;
    const int32_t status = api_->work_wait(self_, flight.work, timeout_ns, flight.err.get());
    if (status == BP_AGAIN) return status;
    COMPAT_CHECK(api_->work_test(self_, flight.work, nullptr) == status);
    api_->work_release(self_, flight.work);
    flight.work = nullptr;
    return flight.status = status;
  }

  void complete(Flight& flight) { expect_ok(wait(flight), flight.err.get(), "operation"); }

  // Around the ring, first with works, then with BP_OP_SYNC.
  void messages() {
    const int32_t to = (rank_ + 1) % kWorld;
    const int32_t from = (rank_ + kWorld - 1) % kWorld;
    for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{100'000}, uint64_t{3'000'000}}) {
      std::vector<uint8_t> mine(size, static_cast<uint8_t>(rank_ + 1));
      std::vector<uint8_t> theirs(size + 1);
      Flight recv;
      Flight send;
      fill(recv, BP_RECV, from, 7, theirs.data(), theirs.size());
      submit(recv);
      fill(send, BP_SEND, to, 7, mine.data(), size);
      submit(send);
      complete(recv);
      complete(send);
      COMPAT_CHECK(recv.result->source == from && recv.result->bytes == size);
      for (uint64_t i = 0; i < size; ++i) COMPAT_CHECK(theirs[i] == from + 1);
    }
    double x = rank_;
    for (int32_t turn = 0; turn < 2 && rank_ < 2; ++turn) {
      Flight flight;
      fill(flight, turn == rank_ ? BP_SEND : BP_RECV, 1 - rank_, 8, &x, sizeof x);
      flight.op->flags = BP_OP_SYNC;
      submit(flight);
      complete(flight);
    }
    COMPAT_CHECK(rank_ == 2 || x == 0);
  }

  bool native(uint32_t kind) const {
    const bp_agent& agent = *agents_.front().get();
    const bool narrowed = agent.capabilities != nullptr;
    const bp_capability* const* list = narrowed ? agent.capabilities : backend_.capabilities;
    const uint32_t count = narrowed ? agent.capability_count : backend_.capability_count;
    for (uint32_t i = 0; i < count; ++i) {
      const bp_capability& c = *list[i];
      const bool data = (c.dtypes & BP_BIT(BP_F32)) != 0 && (c.memory & BP_BIT(BP_HOST)) != 0;
      const bool sum = kind != BP_ALL_REDUCE || (c.reduce_ops & BP_BIT(BP_SUM)) != 0;
      if (c.op == kind && (kind == BP_BARRIER || (data && sum))) return true;
    }
    return false;
  }

  void collective(uint32_t kind, float* in, uint64_t in_count, float* out, uint64_t out_count) {
    if (!native(kind)) return;
    ++collectives_;
    Flight flight;
    begin(flight, kind);
    flight.op->dtype = BP_F32;
    flight.op->reduce_op = BP_SUM;
    flight.op->seq = collectives_;
    flight.op->flags = collectives_ % 2 == 0 ? BP_OP_SYNC : 0;
    flight.op->input = {in, in_count, BP_HOST, 0};
    flight.op->output = {out, out_count, BP_HOST, 0};
    submit(flight);
    complete(flight);
  }

  void collectives() {
    std::vector<float> in(1000, static_cast<float>(rank_ + 1));
    std::vector<float> out(in.size() * kWorld);
    collective(BP_BARRIER, nullptr, 0, nullptr, 0);
    collective(BP_ALL_REDUCE, in.data(), in.size(), out.data(), in.size());
    COMPAT_CHECK(!native(BP_ALL_REDUCE) || out[999] == 6);
    collective(BP_ALL_GATHER, in.data(), in.size(), out.data(), out.size());
    COMPAT_CHECK(!native(BP_ALL_GATHER) || (out[0] == 1 && out[1999] == 2 && out[2999] == 3));
    std::vector<float> all(in.size(), rank_ == 0 ? 42.0F : 0.0F);
    collective(BP_BROADCAST, rank_ == 0 ? all.data() : nullptr, rank_ == 0 ? all.size() : 0, all.data(), all.size());
    COMPAT_CHECK(!native(BP_BROADCAST) || all[999] == 42);
  }

  // Errors come back in a struct that may be longer or shorter than the plugin knows.
  void failures() {
    char text[8] = "seven";
    if (rank_ == 0) {
      Flight send;
      fill(send, BP_SEND, 1, 20, text, 6);
      submit(send);
      complete(send);
    } else if (rank_ == 1) {
      Flight tight;
      fill(tight, BP_RECV, 0, 20, text, 2);
      submit(tight);
      COMPAT_CHECK(wait(tight) == BP_INVALID);
      COMPAT_CHECK(tight.err->status == BP_INVALID && tight.err->text[0] != '\0');
      Flight late;
      fill(late, BP_RECV, 0, 21, text, sizeof text);
      submit(late);
      COMPAT_CHECK(wait(late, kShort) == BP_AGAIN);
      pending_cancel(late);
    }
  }

  void pending_cancel(Flight& flight) {
    api_->work_cancel(self_, flight.work);
    if (wait(flight, kShort) == BP_AGAIN) left_ = flight.work;  // cancel is only a request; abort will end it
    COMPAT_CHECK(left_ != nullptr || flight.status == BP_CANCELLED);
  }

  void abort() {
    char text[8];
    Flight waiting;
    fill(waiting, BP_RECV, (rank_ + 1) % kWorld, 99, text, sizeof text);
    submit(waiting);
    Guarded<bp_error> why;
    bp_error_set(why.get(), BP_PEER_LOST, 0, 2, "rank 2 is gone, says the test");
    host_.end();
    api_->abort(self_, why.get());
    COMPAT_CHECK(wait(waiting) == BP_PEER_LOST && waiting.err->text[0] != '\0');
    if (left_ != nullptr) {
      COMPAT_CHECK(api_->work_wait(self_, left_, kLong, nullptr) != BP_AGAIN);
      api_->work_release(self_, left_);
    }
    Flight after;
    fill(after, BP_SEND, (rank_ + 1) % kWorld, 99, text, sizeof text);
    submit(after);
    COMPAT_CHECK(wait(after) == BP_PEER_LOST);
  }

  const bp_backend& backend_;
  Barrier& all_;
  const int32_t rank_;
  std::string log_;
  HostTable host_;
  std::deque<Guarded<bp_agent>> agents_;  // each wraps the one before it
  void* self_ = nullptr;                  // of the last one
  const bp_process_group_api* api_ = nullptr;
  uint64_t collectives_ = 0;
  bp_work* left_ = nullptr;  // an operation that did not end when it was cancelled
};

std::string probe(const bp_backend* backend) {
  std::string log;
  HostTable host(nullptr, log);
  Guarded<bp_error> err;
  if (backend->probe != nullptr) expect_ok(backend->probe(backend, host.get(), err.get()), err.get(), "probe");
  return log;
}

// Finds the backend or layer "id?key=value" of a plugin.
Member load(const char* path, std::string_view text) {
  const size_t mark = std::min(text.find('?'), text.size());
  const std::string_view id = text.substr(0, mark);
  backplane::core::KeyValues options;
  if (mark < text.size()) {
    const size_t equals = text.find('=', mark);
    COMPAT_CHECK(equals != std::string_view::npos);
    options.emplace_back(text.substr(mark + 1, equals - mark - 1), text.substr(equals + 1));
  }
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    std::_Exit(1);
  }
  const auto* plugin = static_cast<const bp_plugin*>(::dlsym(library, BP_PLUGIN_SYMBOL));
  COMPAT_CHECK(plugin != nullptr && plugin->magic == BP_MAGIC && BP_HAS(plugin, backend_count));
  COMPAT_CHECK(plugin->need_minor <= BP_ABI_MINOR);
#if BP_ABI_MINOR >= 1
  // A field that the plugin's headers lack is absent. BP_HAS is checked before each read.
  COMPAT_CHECK(BP_HAS(plugin, since_1_1) == (plugin->built_minor >= 1));
  for (uint32_t i = 0; i < plugin->backend_count; ++i) {
    COMPAT_CHECK(BP_HAS(plugin->backends[i], since_1_1) == (plugin->built_minor >= 1));
    COMPAT_CHECK(!BP_HAS(plugin->backends[i], since_1_1) || plugin->backends[i]->since_1_1 == 0);
  }
#endif
  for (uint32_t i = 0; i < plugin->backend_count; ++i) {
    const bp_backend* backend = plugin->backends[i];
    if (id == backend->id && BP_HAS(backend, init)) return {backend, options};
  }
  std::fprintf(stderr, "%s has no backend %s\n", path, std::string(id).c_str());
  std::_Exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc >= 4 ? argv[1] : "";
  if (mode != "exact" && mode != "longer") {
    std::fprintf(stderr, "usage: %s exact|longer PLUGIN.so BACKEND [--logs TEXT | LAYER.so LAYER ...]\n", argv[0]);
    return 2;
  }
  compat::tail_size = mode == "longer" ? 256 : 0;
  std::vector<Member> stack{load(argv[2], argv[3])};
  const std::string log = probe(stack.front().backend);
  if (argc == 6 && argv[4] == std::string_view("--logs")) {
    COMPAT_CHECK(log.find(argv[5]) != std::string::npos);
    return 0;
  }
  for (int i = 4; i + 1 < argc; i += 2) stack.push_back(load(argv[i], argv[i + 1]));
  Blackboard blackboard;
  Barrier all(kWorld);
  std::vector<std::jthread> ranks;
  for (int32_t i = 0; i < kWorld; ++i) {
    ranks.emplace_back([&stack, &blackboard, &all, i] { Rank(stack, blackboard, all, i).run(); });
  }
  ranks.clear();
  std::printf("%s with a host of 1.%d (%s): sound\n", argv[3], BP_ABI_MINOR, argv[1]);
  return 0;
}
