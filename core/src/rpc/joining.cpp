// SPDX-License-Identifier: Apache-2.0
#include "rpc/joining.hpp"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_map>
#include <utility>

#include "group/objects.hpp"
#include "log.hpp"
#include "registry/choice.hpp"
#include "registry/selection.hpp"
#include "rpc/current_error.hpp"
#include "rpc/transport.hpp"

namespace backplane::core::rpc {
namespace {

using Json = nlohmann::json;

constexpr const char* kPreferredBackend = "tensorpipe";
constexpr const char* kFallbackBackend = "process_group";
constexpr size_t kMaxWorkerNameBytes = 127;

void check_name(const std::string& name) {
  const bool good =
      !name.empty() && name.size() <= kMaxWorkerNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
        return ('0' <= c && c <= '9') || ('A' <= c && c <= 'Z') || ('a' <= c && c <= 'z') || c == '-' || c == '_' ||
               c == ':';
      });
  if (!good) fail(BP_INVALID, "the worker name '{}' does not match [A-Za-z0-9_:-]{{1,127}}; rename the worker", name);
}

bool viable(Registry& registry, const char* id) {
  try {
    if (!registry.registered(id)) return false;
    const Member& member = registry.lookup(id);
    check_security(member);
    probe(member);
    return true;
  } catch (const Error& e) {
    log(BP_LOG_INFO, "rpc: {} is not viable here: {}", id, e.what());
    return false;
  }
}

// The statements of all workers, by rank.
std::vector<Json> exchange(Group& group, const Json& own, int64_t timeout_ns) {
  const std::string bytes = own.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::vector<Json> all;
  for (const std::string& each : exchange_objects(group, BP_ALL_GATHER, 0, {bytes}, timeout_ns)) {
    all.push_back(Json::parse(each));
  }
  return all;
}

// Throws the problem of the lowest rank that has one. BP_CANCELLED comes last: it follows from another's problem.
void raise_first(const std::vector<Json>& all) {
  const auto find = [&all](bool following) {
    return std::find_if(all.begin(), all.end(), [following](const Json& statement) {
      return !statement.value("problem", "").empty() &&
             (statement.value("status", BP_INTERNAL) == BP_CANCELLED) == following;
    });
  };
  auto found = find(false);
  if (found == all.end()) found = find(true);
  if (found != all.end()) {
    const auto rank = static_cast<size_t>(found - all.begin());
    const std::string problem = all[rank]["problem"];
    throw Error(all[rank].value("status", BP_INTERNAL), fmt::format("rank {} cannot join: {}", rank, problem),
                static_cast<int32_t>(rank));
  }
}

void require_unique(const std::vector<std::string>& names) {
  std::unordered_map<std::string, int32_t> ranks;
  for (const std::string& name : names) {
    const auto rank = static_cast<int32_t>(ranks.size());
    const auto [first, is_new] = ranks.emplace(name, rank);
    if (is_new) continue;
    throw Error(BP_INVALID,
                fmt::format("ranks {} and {} are both called '{}'; give each worker a name of its own", first->second,
                            rank, name),
                rank);
  }
}

// The backend that workers have named. If none has: the preferred one if all workers are on one host and can use it,
// because between hosts it listens on a port, where malformed data ends the worker; else the fallback.
std::string agreed_backend(const std::vector<Json>& all) {
  std::string chosen;
  size_t by = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string backend = all[rank]["backend"];
    if (chosen.empty() && !backend.empty()) {
      chosen = backend;
      by = rank;
    }
    if (backend.empty() || backend == chosen) continue;
    throw Error(BP_INVALID,
                fmt::format("the workers disagree: rank {} chose {}, rank {} chose {}", by, chosen, rank, backend),
                static_cast<int32_t>(rank));
  }
  if (!chosen.empty()) return chosen;
  const bool all_can = std::all_of(all.begin(), all.end(), [&all](const Json& statement) {
    return statement["viable"].get<bool>() && statement["place"] == all[0]["place"];
  });
  return all_can ? kPreferredBackend : kFallbackBackend;
}

std::shared_ptr<const BackendOptions> options_for(const Member& member, const KeyValues& given,
                                                  const WorkerConfig& config) {
  return std::make_shared<BackendOptions>(member, complete_options(*member.backend, given), config.rpc_timeout_ns,
                                          config.init_method);
}

// BP_INVALID unless the options were made for the backend that is named.
void check_options(const BackendOptions& options, const Member& asked, const SelectionPart& part) {
  if (&asked != &options.member()) {
    fail(BP_INVALID, "`rpc_backend_options` must be options of BackendType.{}, these are of BackendType.{}", asked.name,
         options.member().name);
  }
  if (part.options.empty()) return;
  fail(BP_INVALID, "{} has options behind its name ('{}=...') and `rpc_backend_options` beside it; give one of both",
       asked.id, part.options.begin()->first);
}

size_t thread_count(const BackendOptions& options) {
  for (const auto& [key, value] : options.values()) {
    if (key == "num_worker_threads") return std::stoul(value);
  }
  return 16;  // torch's default for TENSORPIPE
}

// The statement of this worker: its name, the fields that `fill` adds, and its exception as the problem.
Json make_statement(const std::string& name, const std::function<void(Json*)>& fill) {
  Json statement = {{"name", name}};
  try {
    check_name(name);
    fill(&statement);
  } catch (...) {
    const Error problem = current_error();
    statement["problem"] = problem.what();
    statement["status"] = problem.status();
  }
  return statement;
}

// While a worker's transport starts, it may wait for those of others. If one of them fails to start, this interrupts
// the waits of all.
class StartupFailure {
 public:
  // `starting`: the store that the transport uses while it starts.
  StartupFailure(const std::shared_ptr<Store>& store, std::shared_ptr<Store> starting, int64_t timeout_ns);
  ~StartupFailure();
  StartupFailure(const StartupFailure&) = delete;
  StartupFailure& operator=(const StartupFailure&) = delete;

  void publish(const std::string& problem);

 private:
  static constexpr const char* kKey = "rpc/failure";
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<Store> watched_;
  const std::shared_ptr<Store> starting_;
  const int64_t timeout_ns_;
  std::thread watcher_;
};

StartupFailure::StartupFailure(const std::shared_ptr<Store>& store, std::shared_ptr<Store> starting, int64_t timeout_ns)
    : store_(store), watched_(store->view()), starting_(std::move(starting)), timeout_ns_(timeout_ns) {
  watcher_ = std::thread([this] {
    try {
      starting_->interrupt(BP_CANCELLED, watched_->get(kKey, Deadline::after(timeout_ns_)));
    } catch (const std::exception&) {  // no worker has failed
    }
  });
}

StartupFailure::~StartupFailure() {
  watched_->interrupt(BP_CANCELLED, "the transport has started");
  watcher_.join();
}

void StartupFailure::publish(const std::string& problem) {
  try {
    store_->set(kKey, problem, Deadline::after(timeout_ns_));
  } catch (const std::exception& e) {
    log(BP_LOG_WARN, "rpc: cannot report a failed start to the other workers: {}", e.what());
  }
}

}  // namespace

Joining::Joining(const WorkerConfig& config) : config_(config) {
  agree_on_backend();
  prepare();
}

void Joining::agree_on_backend() {
  const Json own = make_statement(config_.name, [this](Json* statement) {
    if (config_.problem) throw Error(*config_.problem);
    choose_backend();
    (*statement)["backend"] = member_ == nullptr ? "" : member_->id;
    (*statement)["place"] = memory_domain();
    (*statement)["viable"] = member_ == nullptr && viable(*config_.registry, kPreferredBackend);
  });
  const std::vector<Json> all = exchange(*config_.group, own, config_.timeout_ns);
  raise_first(all);
  for (const Json& statement : all) names_.push_back(statement["name"]);
  require_unique(names_);
  backend_ = agreed_backend(all);
}

// Sets member_ and options_ to the backend that this worker names, if it names one.
void Joining::choose_backend() {
  if (!config_.backend.empty()) {
    const SelectionPart part = parse_rpc_selection(config_.backend);
    member_ = &config_.registry->lookup(part.name);
    if (config_.options) {
      check_options(*config_.options, *member_, part);
    } else {
      Transport::check_kind(*member_);
      options_ = options_for(*member_, part.options, config_);
    }
  }
  if (config_.options) {
    options_ = config_.options;
    member_ = &options_->member();
  }
  if (member_ == nullptr) return;
  Transport::check_kind(*member_);
  check_security(*member_);
}

// Reports what can be known before any transport waits for those of others.
void Joining::prepare() {
  const Json own = make_statement(config_.name, [this](Json* statement) {
    if (member_ == nullptr) {
      member_ = &config_.registry->lookup(backend_);
      Transport::check_kind(*member_);
      check_security(*member_);
      options_ = options_for(*member_, {}, config_);
    }
    Transport::check_group(*member_, *config_.group);
    (*statement)["max_message_bytes"] = Transport::max_message_bytes(*options_);
    threads_ = thread_count(*options_);
  });
  const std::vector<Json> all = exchange(*config_.group, own, config_.timeout_ns);
  raise_first(all);
  for (const Json& statement : all) max_message_bytes_.push_back(statement["max_message_bytes"]);
}

std::unique_ptr<Transport> Joining::start_transport(Transport::Sink* sink) const {
  const std::shared_ptr<Store> store = config_.group->config().store->view();
  StartupFailure failure(config_.group->config().store, store, config_.timeout_ns);
  try {
    return std::make_unique<Transport>(*member_, options_, *config_.group, store, config_.name, config_.timeout_ns,
                                       sink);
  } catch (...) {
    failure.publish(current_error().what());
    throw;
  }
}

void Joining::complete(const std::function<void()>& start) const {
  const Json own = make_statement(config_.name, [&start](Json*) { start(); });
  raise_first(exchange(*config_.group, own, config_.timeout_ns));
}

}  // namespace backplane::core::rpc
