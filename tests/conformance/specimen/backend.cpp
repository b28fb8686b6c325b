// SPDX-License-Identifier: Apache-2.0
//
// The specimen as a plugin. Its descriptor can be written to, so that a mutant may patch it while the plugin is loaded.
#include <atomic>
#include <cstdlib>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

constexpr uint64_t kAllReductions = BP_ALL_REDUCE_OPS;
constexpr uint64_t kScans = kAllReductions & ~BP_BIT(BP_AVG);
constexpr uint64_t kBoth = BP_BIT(BP_HOST) | BP_BIT(BP_CUDA);

// Forwards the ABI to the group, so that mutants can override the group's end.
class Shell final : public sdk::ProcessGroup {
 public:
  explicit Shell(std::unique_ptr<Specimen> group) : group_(std::move(group)) {}
  ~Shell() override { group_->close(); }
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override { return group_->submit(op); }
  void abort(const sdk::Failure& why) noexcept override { group_->abort(why); }
  const void* extension(std::string_view id) override { return group_->extension(id); }
  Specimen& group() { return *group_; }

 private:
  const std::unique_ptr<Specimen> group_;
};

struct Description {
  static constexpr const char* id = "specimen";
  static constexpr const char* version = "1.0.0";
  static constexpr const char* summary = "a small correct backend over TCP on loopback, to be broken";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  // It authenticates with the random keys that the ranks leave in the store, in every job.
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_AUTHENTICATES;
  static constexpr std::array options = {
      sdk::option({.type = BP_OPTION_STRING,
                   .key = "address",
                   .default_value = "127.0.0.1",
                   .help = "IPv4 address of the loopback device to listen on"}),
      sdk::option({.type = BP_OPTION_INT,
                   .key = "port",
                   .default_value = "0",
                   .help = "TCP port to listen on; 0: the system chooses",
                   .min = 0,
                   .max = 65535}),
      sdk::option({.type = BP_OPTION_INT,
                   .key = "backlog",
                   .default_value = "64",
                   .help = "connections that may wait to be accepted",
                   .min = 1,
                   .max = 4096}),
      sdk::option({.type = BP_OPTION_BYTES,
                   .key = "eager_limit",
                   .default_value = "8K",
                   .help = "the longest message that a send copies",
                   .min = 0,
                   .max = 65536}),
      sdk::option({.type = BP_OPTION_BYTES,
                   .key = "eager_window",
                   .default_value = "256K",
                   .help = "bytes of copied messages that may wait at one peer",
                   .min = 0,
                   .max = 67108864}),
      sdk::option({.type = BP_OPTION_DURATION,
                   .key = "linger",
                   .default_value = "2s",
                   .help = "how long destroy waits for the others to take what was sent",
                   .max = 4e9}),
      sdk::option({.type = BP_OPTION_DURATION,
                   .key = "handshake_timeout",
                   .default_value = "5s",
                   .help = "how long a connection may keep silent before it says who it is",
                   .min = 1e6,
                   .max = 6e10}),
      sdk::option({.type = BP_OPTION_FLOAT,
                   .key = "retry_growth",
                   .default_value = "1.5",
                   .help = "factor between two pauses while another rank cannot be reached",
                   .min = 1,
                   .max = 10}),
      sdk::option({.type = BP_OPTION_ENUM,
                   .key = "order",
                   .default_value = "ascending",
                   .help = "in which order collectives talk to the others",
                   .choices = "ascending|descending"}),
      sdk::option({.type = BP_OPTION_BOOL,
                   .key = "native",
                   .default_value = "true",
                   .help = "false: this group declares send and recv alone"}),
      sdk::option({.type = BP_OPTION_STRING,
                   .key = "secret",
                   .default_value = "",
                   .help = "word that all ranks must know",
                   .flags = BP_OPTION_SECRET | BP_OPTION_SAME_ON_ALL}),
  };
  static constexpr std::array capabilities = {
      sdk::moves(BP_SEND, BP_ALL_DTYPES, kBoth),
      sdk::moves(BP_RECV, BP_ALL_DTYPES, kBoth),
      sdk::moves(BP_BARRIER),
      sdk::moves(BP_BROADCAST, BP_ALL_DTYPES, kBoth),
      sdk::moves(BP_GATHER, BP_ALL_DTYPES, kBoth),
      sdk::moves(BP_GATHERV, BP_ALL_DTYPES, kBoth),
      sdk::moves(BP_SCATTER, BP_ALL_DTYPES, kBoth),
      sdk::moves(BP_SCATTERV, BP_ALL_DTYPES, kBoth),
      sdk::moves(BP_ALL_GATHER, BP_ALL_DTYPES, kBoth),
      sdk::moves(BP_ALL_GATHERV, BP_ALL_DTYPES, kBoth),
      sdk::moves(BP_ALL_TO_ALL, BP_ALL_DTYPES, kBoth),
      sdk::moves(BP_ALL_TO_ALLV, BP_ALL_DTYPES, kBoth),
      sdk::reduces(BP_REDUCE, BP_ALL_DTYPES, kAllReductions, kBoth),
      sdk::reduces(BP_ALL_REDUCE, BP_ALL_DTYPES, kAllReductions, kBoth),
      sdk::reduces(BP_REDUCE_SCATTER, BP_ALL_DTYPES, kAllReductions, kBoth),
      sdk::reduces(BP_REDUCE_SCATTERV, BP_ALL_DTYPES, kAllReductions, kBoth),
      sdk::reduces(BP_SCAN, BP_ALL_DTYPES, kScans, kBoth),
      sdk::reduces(BP_EXSCAN, BP_ALL_DTYPES, kScans, kBoth),
  };

  static void probe(const sdk::Host&) { (void)find_mutant(); }

  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    const Mutant* chosen = find_mutant();
    auto shell = std::make_unique<Shell>(chosen != nullptr && chosen->make != nullptr ? chosen->make()
                                                                                      : std::make_unique<Specimen>());
    try {
      shell->group().start(context);
    } catch (const std::exception& e) {
      shell->abort(sdk::Failure(BP_CANCELLED, std::string("the start failed: ") + e.what()));
      throw;
    }
    return shell;
  }
};

constexpr uint32_t kPlainCapabilities = 2;  // send and recv, the first ones

bool wants_native(const bp_init& init) { return sdk::Options(init.values, init.value_count).boolean("native"); }

// Calls after finalize are bugs of the caller.
std::atomic<bool> finalized = false;
void finalize(const bp_backend*) { finalized.store(true); }

int32_t init(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (finalized.load()) std::abort();
  const int32_t status = sdk::detail::init<Description>(self, init, agent, err);
  if (status != BP_OK) return status;
  if (!wants_native(*init)) {
    agent->capabilities = sdk::detail::Tables<Description>::backend.capabilities;
    agent->capability_count = kPlainCapabilities;
  }
  const Mutant* chosen = find_mutant();
  if (chosen != nullptr && chosen->patch_agent != nullptr) chosen->patch_agent(*agent);
  return BP_OK;
}

// The options are digested only to have an object that can be wrong in mutants: init reads the texts.
int32_t construct_options(const bp_backend*, const bp_options_request* request, bp_options** options, bp_error* err) {
  return sdk::guarded(err, [request, options] {
    *options = reinterpret_cast<bp_options*>(new Settings(sdk::Options(request->values, request->value_count)));
    return BP_OK;
  });
}
void destroy_options(const bp_backend*, bp_options* options) { delete reinterpret_cast<Settings*>(options); }

constexpr bp_backend described() {
  bp_backend backend = sdk::detail::Tables<Description>::backend;
  backend.init = &init;
  backend.construct_options = &construct_options;
  backend.destroy_options = &destroy_options;
  backend.finalize = &finalize;
  return backend;
}

constinit bp_backend backend = described();
const bp_backend* const backends[] = {&backend};

[[gnu::constructor]] void patch() {
  if (chosen_mutant().empty()) return;
  for (const Mutant& each : all_mutants()) {
    if (mutant(each.name) && each.patch_backend != nullptr) each.patch_backend(backend);
  }
}

__attribute__((section(BP_NOTE_SECTION), used, aligned(4))) constexpr auto note = sdk::detail::note<Description>();

}  // namespace

}  // namespace backplane::specimen

extern "C" const bp_plugin bp_plugin_v1;
extern "C" BP_EXPORT constinit const bp_plugin bp_plugin_v1 = {
    sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "Backplane's tests", backplane::specimen::backends, 1, 0};
