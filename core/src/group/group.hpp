// SPDX-License-Identifier: Apache-2.0
//
// A process group: checks an operation, records it, and hands it to the backend that serves its memory, or performs it
// over that backend's sends and receives.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backplane/base/executor.hpp"
#include "backplane/base/grace.hpp"
#include "group/agent.hpp"
#include "group/liveness.hpp"
#include "group/memory.hpp"
#include "group/recorder.hpp"
#include "group/reporter.hpp"
#include "group/request.hpp"
#include "group/verdict.hpp"
#include "registry/selection.hpp"
#include "registry/tuning.hpp"
#include "text.hpp"

namespace backplane::core {

struct Choice;  // registry/choice.hpp

// Collectives of one kind on host memory, of so many bytes of a rank's part.
struct SizeRange {
  uint32_t kind = 0;
  uint64_t from = 0;
  uint64_t end = UINT64_MAX;
};

// A backend with its options, and the memory it serves (none: what no other part names).
struct ChosenBackend {
  std::optional<uint32_t> memory;
  const Member* member = nullptr;
  std::shared_ptr<const BackendOptions> options;
  // `auto`: when all ranks are there they choose one of these, with the options that were given.
  Registry* choose_from = nullptr;
  KeyValues given;
  std::vector<SizeRange> only = {};  // not empty: it serves nothing else
};
using ChooseBackends = std::function<std::vector<ChosenBackend>()>;

// Everything that two groups of one job have in common, and who this rank is in this one.
struct GroupConfig {
  std::string name;
  int32_t rank = -1;  // -1: not a member
  int32_t world_size = 0;
  int32_t device = -1;
  int64_t timeout_ns = 0;             // default of its operations, and time allowed for starting
  std::vector<int32_t> global_ranks;  // world_size
  std::vector<ChosenBackend> backends;
  ChooseBackends choose;               // replaces them once all members have come, unless it is empty
  std::vector<Chosen> layers;          // around each backend, the outermost first
  std::shared_ptr<Store> store;        // this group's own keys
  std::string key = kFirstGroup;       // unlike its name it is unique in the job
  std::shared_ptr<void> job;           // what lives as long as any group of the job (the server of its store)
  std::shared_ptr<Reporter> reporter;  // of the job; NULL in its first group, which makes it
  std::shared_ptr<Liveness> liveness;  // of the job; NULL: one for this group
  int64_t start_timeout_ns = BP_INHERIT_TIMEOUT;  // time allowed for starting; BP_INHERIT_TIMEOUT: timeout_ns
  bool survives_parent = false;  // is made from a broken group, by shrink; its abort does not end the start
};

// Whether the ranks compare what they do: never, one collective about every second, each collective before it begins.
enum class Fingerprints { kOff, kSampled, kAlways };
Fingerprints fingerprints_wanted();  // BACKPLANE_FINGERPRINT; warns of anything else. watch.cpp

class Group : public std::enable_shared_from_this<Group>, private Liveness::Listener {
 public:
  // Waits for all members, compares what they chose, and starts the agents. A non-member's group does nothing. Ends
  // early when a member is lost, and when `parent` (may be NULL) is aborted or destroyed.
  static std::shared_ptr<Group> start(GroupConfig config, Group* parent = nullptr);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const GroupConfig& config() const { return config_; }
  bool member() const { return config_.rank >= 0; }
  bool has_layers() const { return !config_.layers.empty(); }
  // Who tells of losses; NULL in a world of one.
  const std::shared_ptr<Liveness>& liveness() const { return liveness_; }
  // The backend that serves a kind of memory, "" if none.
  std::string backend_id(uint32_t memory) const;

  // Performs an operation and waits for it.
  void run(const bp_op& op);
  // A send or recv (with tag 0) whose tag is one of the core's.
  void run_with_tag(const bp_op& op, uint64_t tag);
  // Starts operations. All or nothing. `deliver` (may be empty) is called when they are done, before anybody is told.
  std::vector<std::shared_ptr<Request>> submit(const bp_op* const* ops, size_t count,
                                               const std::function<void()>& deliver = {});
  // Takes the oldest message of this rank that matches, by the deadline. The result belongs to a BP_RECV or to drop.
  bp_message* probe(int32_t peer, uint64_t tag, Deadline deadline, bp_result* result);
  void drop(bp_message* message);
  // Throws why the group is not whole, if it is not.
  void check_whole();
  // An extension of the backend that serves this memory, NULL if it has none.
  const void* extension(uint32_t memory, const char* id);

  // Memory for operations on buffers of this kind: the backend's, or ordinary host memory if it has none to give.
  std::unique_ptr<Memory> allocate(uint64_t bytes, uint32_t memory, int32_t device);
  // The program's memory, prepared for operations if the backend does so.
  std::unique_ptr<Memory> register_memory(void* data, uint64_t bytes, uint32_t memory, int32_t device);

  // Subgroups; called by all members in the same order. `name` may be empty. `choose`: other backends than
  // this group's; a rank on which it throws tells the others.
  std::shared_ptr<Group> new_group(const std::vector<int32_t>& ranks, const std::string& name, int64_t timeout_ns,
                                   ChooseBackends choose = {});
  // The same, called by the new group's members only.
  std::shared_ptr<Group> new_group_by_members(const std::vector<int32_t>& ranks, const std::string& name,
                                              int64_t timeout_ns);
  std::shared_ptr<Group> split(int64_t color, int64_t key);
  // A group of those members that live, made by all of them; also of a group that is broken. The new one does not end
  // with this one. timeout_ns 0: the group's.
  std::shared_ptr<Group> shrink(int64_t timeout_ns);

  // Everything pending and everything later fails with `cause`, if the group was still whole. Any thread; returns at
  // once.
  void abort(const Error& cause);
  // Ends it and the groups made from it. Returns when the backends are closed. Twice is fine.
  void destroy();

  // The flight recorder; `all`: as an array, with those of the groups made from this one.
  std::string trace_json(bool all = false) const;
  // What it says of calls that go beside the group's operations: a JSON object, whose members it has. Any thread.
  void set_calls(std::function<std::string()> calls);
  // Tells a layer that wants to hear of calls, if there is one. Any thread.
  void show_call(const bp_call& call);
  // Says to it where to read the numbers of the worker whose group this is, from any thread. Once, before its calls.
  using Metrics = std::function<void(const std::function<void(const bp_metric& metric)>& each)>;
  void show_metrics(const std::string& worker, Metrics metrics);

  // A number for an object that this rank sends, unlike those before it.
  uint64_t next_object() { return objects_.fetch_add(1, std::memory_order_relaxed) & ((UINT64_C(1) << 48) - 1); }

  // Handles of the C API; the last one to go destroys the group.
  void add_handle() { handles_.fetch_add(1); }
  void drop_handle();

 private:
  friend class NativeRequest;
  friend class TaskRequest;
  class Presence;
  class Pass;
  class Watchdog;
  enum class State : uint32_t { kActive, kBroken, kDestroyed };

  Group(GroupConfig config, std::shared_ptr<void> job, std::shared_ptr<Reporter> reporter);
  void refuse() const;        // throws why the group is not active
  std::string cause() const;  // why it is broken; empty if it is not
  // An operation that is ready to start: checked, completed, and given to an agent.
  struct Plan {
    ValidOp valid;
    Agent* agent = nullptr;
    bool native = false;
    uint64_t count = 0;  // for the recorder, in the caller's dtype
  };
  // Gives `mine`, as many numbers on all ranks, to all; returns all ranks' in their order. All ranks, in the same
  // order.
  std::vector<int64_t> gather_in_memory(const std::vector<int64_t>& mine);
  std::vector<int64_t> gather_by_store(const std::vector<int64_t>& mine);
  bool gathers_in_host_memory() const;
  // run.cpp
  Agent& agent_of(uint32_t memory) const;
  Agent& agent_for(const ValidOp& valid, uint32_t memory) const;
  Plan plan(const bp_op& op) const;
  // Numbers a planned operation and records its start.
  uint64_t number(Plan* plan, uint64_t flags);
  void perform(Agent& agent, const ValidOp& valid, bool native);
  // Waits for a backend's work until the deadline; then makes it end, if need be by aborting the whole group, and
  // answers BP_TIMEOUT. Never BP_AGAIN. Releases nothing.
  int32_t finish_work(Agent& agent, bp_work* work, Deadline deadline, const ValidOp& valid, bp_error* err);
  Plan plan_one(const bp_op& op) const;
  void execute(Plan* plan);
  std::shared_ptr<Request> start_request(Plan* plan, uint64_t flags, const std::function<void()>& deliver);
  std::shared_ptr<Request> start_native(Started started);
  std::shared_ptr<Request> start_task(Started started);
  static bool begins_together(const Plan& one, const Plan& next);
  void give_up(const std::vector<std::shared_ptr<Request>>& requests);
  // Waits for all of them; did they end in time?
  static bool all_end(const std::vector<std::shared_ptr<Request>>& requests, Deadline deadline);
  void start_agents(Group* parent);
  void check_members(const std::vector<int32_t>& ranks) const;
  GroupConfig child_config(const std::vector<int32_t>& ranks, const std::string& name, int64_t timeout_ns) const;
  // start.cpp: a child that is being made ends with its parent. Throws if this group is not whole, or, with
  // `even_broken`, only if it has been destroyed.
  void adopt(const std::shared_ptr<Group>& child, bool even_broken);
  void disown(const std::shared_ptr<Group>& child);
  void end_start(const Error& cause);
  Error why_not_started(const std::exception& e) const;
  std::string tell_failure(const std::string& problem) const;
  // losses.cpp: what becomes of a group whose member is lost.
  void on_loss(const Loss& loss) override;
  // A failure as a backend saw it, or the loss that is behind it.
  Error explained(const Error& error) const;
  bool caused_by_loss(const Error& cause) const;
  // shrink.cpp
  std::vector<int32_t> survivors(Store& round, Deadline deadline, const Allowance& allowance) const;
  std::shared_ptr<Group> start_shrunk(const std::vector<int32_t>& ranks, uint64_t number, Deadline deadline);
  void choose_late(Deadline deadline);
  void choose_backends(Deadline deadline);
  Choice choose_one(const ChosenBackend& part, size_t number, Deadline deadline) const;
  static void add_exemptions(const ChosenBackend& chosen, const std::vector<Exemption>& exemptions,
                             std::vector<ChosenBackend>* backends);
  void start_agent(const ChosenBackend& backend, Deadline deadline, Group* parent);
  std::shared_ptr<Agent> parent_agent(const Member& member) const;
  // Adds who and what to a failure.
  Error labelled(const Error& error, const ValidOp& valid) const;
  std::optional<Error> cause_behind(const Error& error);
  // The same, and breaks the group if it must. `begun`: something may have been sent.
  Error failure(const Error& error, const ValidOp& valid, bool begun);
  void abort_agents(const Error& cause);

  // watch.cpp: what the ranks tell each other.
  void take_seat();
  void leave_seat();
  std::string answer(const Question& question);
  // A collective timed out, or this rank's backend refused it (most likely because another rank is in a different one,
  // of which each sees its own half): asks the others where they are, and says so. All ranks get the same sentence.
  Error agreed(const Error& error, const ValidOp& valid);
  Verdict find_out(const Error& error, const ValidOp& valid);
  // All ranks agree on the first that is said about a group, and whoever has not heard of it is told.
  Verdict agree_on(const Verdict& mine, int32_t status);
  void compare_fingerprint();
  bool compares_first(const bp_op& op) const;
  void check_fingerprint(Agent& agent, const ValidOp& valid);
  void dump(const std::string& why) const;
  void dump_if_asked();

  void keep(const std::shared_ptr<Request>& request);
  void forget(Request* request, uint64_t number, int32_t status);
  // Ends operations in flight whose deadline has passed; returns when to look again.
  Deadline end_overdue();
  bool cancel_requests();  // did all of them end?
  void end_requests();

  GroupConfig config_;  // without its job; as it was given, but for what `auto` stands for, until the group has started
  std::shared_ptr<void> job_;
  std::shared_ptr<Reporter> reporter_;
  std::optional<Reporter::Seat> seat_;
  const Fingerprints fingerprints_ = fingerprints_wanted();
  uint64_t compared_ = 0;               // the collective whose fingerprint was compared last; reporter's thread
  uint64_t last_seen_ = 0;              // collectives at the last tick; reporter's thread
  int64_t dumped_ns_ = 0;               // reporter's thread
  std::shared_ptr<Liveness> liveness_;  // NULL in a world of one
  std::shared_ptr<Store> store_;        // a view for the start of this group, which abort and destroy interrupt
  std::atomic<bool> started_ = false;
  std::atomic<bool> shrinking_ = false;
  std::atomic<uint64_t> shrinks_ = 0;
  Metrics metrics_;     // of a worker, for layers: read until the agents are gone
  std::string worker_;  // its name
  bp_metrics_api shown_metrics_ = {};
  std::vector<std::shared_ptr<Agent>> agents_;  // a subgroup that starts may share one for a moment
  std::array<Agent*, BP_MEMORY_COUNT> by_memory_ = {};
  struct Exempt {  // from that
    SizeRange range;
    Agent* agent;
  };
  std::array<std::vector<Exempt>, BP_OP_COUNT> exempt_;  // by kind
  Recorder recorder_;
  std::atomic<uint64_t> collectives_ = 0;
  std::atomic<uint64_t> messages_ = 0;
  std::atomic<uint64_t> objects_ = 0;
  std::atomic<State> state_ = State::kActive;
  std::atomic<uint32_t> inside_ = 0;  // threads that are using the agents
  std::atomic<int32_t> handles_ = 0;
  std::atomic<uint64_t> children_made_ = 0;
  std::atomic<uint64_t> splits_ = 0;  // agreed on through the store

  std::mutex destroy_mutex_;        // held while the group is destroyed
  mutable std::mutex mutex_;        // guards what follows; never held while a plugin is called
  std::condition_variable broken_;  // notified when cause_ is set
  std::optional<Error> cause_;
  std::optional<Verdict> verdict_;                                   // what the ranks agreed on, if they did
  std::unordered_map<Request*, std::shared_ptr<Request>> requests_;  // in flight
  std::vector<std::weak_ptr<Group>> children_;
  std::function<std::string()> calls_;
  base::Executor engine_{1};  // asynchronous collectives that the backend lacks, in the order of submission
  std::map<std::vector<int32_t>, uint64_t> made_by_members_;  // how many groups of these ranks
  const std::shared_ptr<Watchdog> watchdog_;
};

}  // namespace backplane::core
