// SPDX-License-Identifier: Apache-2.0
//
// How a worker joins: all tell each other who they are and what they chose, all come to the same judgement, and what
// goes wrong later on one of them reaches the others, too, so that nobody is left waiting.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "group/objects.hpp"
#include "log.hpp"
#include "registry/choice.hpp"
#include "registry/selection.hpp"
#include "rpc/caught.hpp"
#include "rpc/worker.hpp"

namespace backplane::core::rpc {
namespace {

using Json = nlohmann::json;

constexpr const char* kPreferred = "tensorpipe";
constexpr const char* kAlways = "process_group";
constexpr size_t kLongestWorkerName = 127;

void check_name(const std::string& name) {
  const bool good =
      !name.empty() && name.size() <= kLongestWorkerName && std::all_of(name.begin(), name.end(), [](char c) {
        return ('0' <= c && c <= '9') || ('A' <= c && c <= 'Z') || ('a' <= c && c <= 'z') || c == '-' || c == '_' ||
               c == ':';
      });
  if (!good) fail(BP_INVALID, "the worker name '{}' is not [A-Za-z0-9_:-]{{1,127}}; give it such a name", name);
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

std::vector<Json> exchange(Group& group, const Json& mine, int64_t timeout_ns) {
  const std::string bytes = mine.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::vector<Json> all;
  for (const std::string& each : exchange_objects(group, BP_ALL_GATHER, 0, {bytes}, timeout_ns)) {
    all.push_back(Json::parse(each));
  }
  return all;
}

// The first problem that anybody has is everybody's; one that only follows from another's comes last.
void raise_first(const std::vector<Json>& all) {
  const auto find = [&all](bool following) {
    return std::find_if(all.begin(), all.end(), [following](const Json& card) {
      return !card.value("problem", "").empty() && (card.value("status", BP_INTERNAL) == BP_CANCELLED) == following;
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

std::unordered_map<std::string, int32_t> ranks_of(const std::vector<std::string>& names) {
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
  return ranks;
}

// What all have chosen; those that leave it open take what all can do, and between hosts what needs no address named.
std::string agree_on_backend(const std::vector<Json>& all) {
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
  const bool all_can = std::all_of(all.begin(), all.end(), [&all](const Json& card) {
    return card["viable"].get<bool>() && card["place"] == all[0]["place"];
  });
  return all_can ? kPreferred : kAlways;
}

std::shared_ptr<const BackendOptions> options_for(const Member& member, const KeyValues& given,
                                                  const WorkerConfig& config) {
  return std::make_shared<BackendOptions>(member, complete_options(*member.backend, given), config.rpc_timeout_ns,
                                          config.init_method);
}

// Were these made for the backend that is asked for?
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

// What this rank tells the others of itself.
Json card_of(const WorkerConfig& config, const std::function<void(Json*)>& fill) {
  Json card = {{"name", config.name}};
  try {
    check_name(config.name);
    fill(&card);
  } catch (...) {
    const Error problem = caught();
    card["problem"] = problem.what();
    card["status"] = problem.status();
  }
  return card;
}

// While a worker's transport starts, it may wait for those of others. If one of them fails, this ends the waiting of
// all.
class Beginning {
 public:
  // `starting`: what the transport uses of the store.
  Beginning(const std::shared_ptr<Store>& store, std::shared_ptr<Store> starting, int64_t timeout_ns)
      : store_(store), watched_(store->view()), starting_(std::move(starting)), timeout_ns_(timeout_ns) {
    watch_ = std::thread([this] {
      try {
        starting_->interrupt(BP_CANCELLED, watched_->get(kKey, Deadline::after(timeout_ns_)));
      } catch (const std::exception&) {  // nobody has failed
      }
    });
  }
  ~Beginning() {
    watched_->interrupt(BP_CANCELLED, "all is well");
    watch_.join();
  }
  Beginning(const Beginning&) = delete;
  Beginning& operator=(const Beginning&) = delete;

  void tell(const std::string& problem) {
    try {
      store_->set(kKey, problem, Deadline::after(timeout_ns_));
    } catch (const std::exception& e) {
      log(BP_LOG_WARN, "rpc: the others cannot be told of a failure: {}", e.what());
    }
  }

 private:
  static constexpr const char* kKey = "rpc/failure";
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<Store> watched_;
  const std::shared_ptr<Store> starting_;
  const int64_t timeout_ns_;
  std::thread watch_;
};

}  // namespace

Worker::Worker(WorkerConfig config)
    : global_ranks_(config.group->config().global_ranks),
      rank_(config.group->config().rank),
      rpc_timeout_ns_(config.rpc_timeout_ns),
      watched_(config.group->liveness() && config.group->liveness()->watches()),
      metrics_(static_cast<size_t>(config.group->config().world_size)),
      calls_([this](uint64_t number) { expire(number); }),
      liveness_(config.group->liveness()),
      group_(std::move(config.group)) {}

std::shared_ptr<Worker> Worker::join(WorkerConfig config) {
  std::shared_ptr<Worker> worker(new Worker(config));
  try {
    worker->agree_on_all(config);
    worker->start(config);
  } catch (const std::exception& error) {
    if (worker->begin_to_leave()) {
      worker->close(Error(BP_CANCELLED, fmt::format("this worker could not join: {}", error.what())),
                    Deadline::after(BP_DEFAULT_TIMEOUT_NS));
    }
    throw;
  }
  return worker;
}

void Worker::agree_on_all(const WorkerConfig& config) {
  const Json mine = card_of(config, [this, &config](Json* card) {
    if (config.problem) throw Error(*config.problem);
    if (!config.backend.empty()) {
      const std::vector<SelectionPart> parts = parse_selection(config.backend);
      if (parts.size() != 1 || parts[0].memory) fail(BP_INVALID, "'{}' is not one RPC backend", config.backend);
      member_ = &config.registry->lookup(parts[0].name);
      if (config.options) {
        check_options(*config.options, *member_, parts[0]);
      } else {
        Transport::check_kind(*member_);
        options_ = options_for(*member_, parts[0].options, config);
      }
    }
    if (config.options) {
      options_ = config.options;
      member_ = &options_->member();
    }
    if (member_ != nullptr) {
      Transport::check_kind(*member_);
      check_security(*member_);
    }
    (*card)["backend"] = member_ == nullptr ? "" : member_->id;
    (*card)["place"] = shared_place();
    (*card)["viable"] = member_ == nullptr && viable(*config.registry, kPreferred);
  });
  const std::vector<Json> all = exchange(*group_, mine, config.timeout_ns);
  raise_first(all);
  for (const Json& card : all) names_.push_back(card["name"]);
  ranks_ = ranks_of(names_);
  backend_ = agree_on_backend(all);
}

// Told before anything waits for the others' transports, too.
void Worker::start(const WorkerConfig& config) {
  const Json ready = card_of(config, [this, &config](Json* card) {
    if (member_ == nullptr) {
      member_ = &config.registry->lookup(backend_);
      Transport::check_kind(*member_);
      check_security(*member_);
      options_ = options_for(*member_, {}, config);
    }
    Transport::check_group(*member_, *group_);
    (*card)["max_message_bytes"] = Transport::max_message_bytes(*options_);
    executor_ = std::make_unique<base::Executor>(
        thread_count(*options_), base::Executor::AtStop::kRunQueued, [](const std::exception& e) {
          log(BP_LOG_WARN, "rpc: cannot start another thread for calls ({}); the existing ones run them", e.what());
        });
  });
  const std::vector<Json> all = exchange(*group_, ready, config.timeout_ns);
  raise_first(all);
  for (const Json& card : all) most_bytes_.push_back(card["max_message_bytes"]);
  const Json mine = card_of(config, [this, &config](Json*) {
    Transport::Sink* const sink = this;
    const std::shared_ptr<Store> store = group_->config().store->view();
    Beginning beginning(group_->config().store, store, config.timeout_ns);
    try {
      auto made = std::make_unique<Transport>(*member_, options_, *group_, store, config.name, config.timeout_ns, sink);
      const std::lock_guard lock(mutex_);
      transport_ = std::move(made);
    } catch (...) {
      beginning.tell(caught().what());
      throw;
    }
  });
  show_calls(*group_);  // whoever has heard from all below may call
  raise_first(exchange(*group_, mine, config.timeout_ns));
  if (liveness_) liveness_->add(this);
}

// In the group's flight recorder, and to its layers.
void Worker::show_calls(Group& group) {
  group.show_metrics(names_[static_cast<size_t>(rank_)],
                     [weak = weak_from_this()](const std::function<void(const bp_metric& metric)>& each) {
                       const auto self = weak.lock();
                       if (!self) return;
                       for (const Metric& it : self->metrics()) {
                         const char* peer = it.peer < 0 ? nullptr : self->names_[static_cast<size_t>(it.peer)].c_str();
                         each({sizeof(bp_metric), it.kind, it.name, peer, it.value});
                       }
                     });
  record_.show_to(&group, global_ranks_);
  group.set_calls([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return std::string(R"({"calls":[]})");
    return fmt::format(R"({{"calls":{},"call_metrics":{}}})", self->calls_json(), self->metrics_json());
  });
}

int32_t Worker::find(const std::string& name) const {
  const auto found = ranks_.find(name);
  if (found != ranks_.end()) return found->second;
  fail(BP_INVALID, "there is no worker '{}'; there are {}", name, fmt::join(names_, ", "));
}

}  // namespace backplane::core::rpc
