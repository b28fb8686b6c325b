// SPDX-License-Identifier: Apache-2.0
//
// A backend's agent as the cases use it: the table of abi/process_group.h with C++ types, one function for each.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device_mirror.hpp"
#include "host.hpp"

namespace backplane::conformance {

// The result of a call.
struct Outcome {
  int32_t status = BP_OK;
  bp_error error;

  Outcome() { bp_error_init(&error); }
  bool ok() const { return status == BP_OK; }
  // "BP_TIMEOUT: rank 3 ... (peer rank 3)"
  std::string text() const;
};

const char* status_name(int32_t status);

class Agent;

// The arguments of an init. The defaults make an agent of the case's world.
struct Plan {
  std::string space = "main";  // store prefix of the group; reuse it only after all agents of the group are destroyed
  int32_t rank = -1;           // -1: the calling rank
  int32_t world_size = -1;     // -1: the world of the case
  std::vector<int32_t> global_ranks = {};           // empty: 0, 1, ...
  const Agent* parent = nullptr;                    // the agent of the group that this one is made from
  std::vector<int32_t> parent_ranks = {};           // of the members, in the parent's numbers
  std::map<std::string, std::string> options = {};  // replace the subject's values and the schema's defaults
  std::optional<Nanoseconds> timeout = {};          // for init, scaled by the caller; unset: 20 s
  std::optional<bool> secure = {};                  // whether the job has a secret; unset: from the environment
  bool on_device = false;  // operations get memory of the backend's device instead of the host's
};

// An operation with everything unset but its kind; timeout 20 s.
bp_op make_op(uint32_t kind, uint32_t dtype = BP_U8);
bp_op send_op(int32_t peer, uint64_t tag, const void* data, uint64_t bytes);
bp_op recv_op(int32_t peer, uint64_t tag, void* data, uint64_t bytes, bp_result* result = nullptr);
bp_result make_result();

// Maps a tag as the core does for a backend that matches fewer than 64 bits (bp_backend.tag_bits). submit applies it to
// the tag of each operation.
uint64_t fit_tag(const bp_backend& backend, uint64_t tag);

// An operation in flight or terminal. Movable. The destructor cancels an operation that is not terminal and waits up to
// five seconds for it; then it leaks the work and its memory (the child process ends soon).
class Pending {
 public:
  Pending() = default;
  Pending(Agent* agent, const bp_op& op);
  Pending(Pending&& other) noexcept;
  Pending& operator=(Pending&& other) noexcept;
  ~Pending();

  // The outcome of submit. BP_OK with in_flight() false: the operation finished inside submit.
  const Outcome& submitted() const { return submitted_; }
  bool in_flight() const { return work_ != nullptr; }
  bp_work* work() const { return work_; }

  Outcome test();
  Outcome wait(Nanoseconds timeout);
  void cancel();
  // Waits up to `timeout`, then cancels and waits up to five seconds more; BP_AGAIN if the operation is still not
  // terminal. Releases it.
  Outcome finish(Nanoseconds timeout);
  // Calls work_release. Call only when terminal.
  void release();

 private:
  // Copies the output of a mirrored operation to the case's buffer. Returns the outcome.
  Outcome ended(Outcome outcome);

  Agent* agent_ = nullptr;
  bp_work* work_ = nullptr;
  Outcome submitted_;
  std::unique_ptr<DeviceMirror> mirror_;  // as long as the operation is not terminal
};

class Agent {
 public:
  // Calls the backend's construct_options and init and stores the result in `outcome`. An agent that did not start may
  // only be destroyed. `log` receives the backend's log lines.
  Agent(const bp_backend& backend, World& world, const Plan& plan, LogSink log, Outcome& outcome);
  // Calls close. During stack unwinding leaks the agent instead, because its works may be in use.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  bool started() const { return api_ != nullptr; }
  const bp_process_group_api& api() const { return *api_; }
  void* self() const { return agent_.self; }
  const bp_agent& raw() const { return agent_; }
  const bp_backend& backend() const { return backend_; }
  Host& host() { return *host_; }
  // Makes later operations use memory of the backend's device. False: the backend allocates none.
  bool use_device_memory();
  // Null: operations use the cases' own buffers.
  const std::shared_ptr<MirrorMemory>& mirrors() const { return mirrors_; }
  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }

  // Submits without BP_OP_SYNC.
  Pending submit(const bp_op& op) { return Pending(this, op); }
  // Submits and waits up to op.timeout_ns; with BP_OP_SYNC in op.flags the backend does the waiting.
  Outcome run(const bp_op& op);

  Outcome send(int32_t peer, uint64_t tag, const void* data, uint64_t bytes);
  Outcome recv(int32_t peer, uint64_t tag, void* data, uint64_t bytes, bp_result* result = nullptr);
  Pending isend(int32_t peer, uint64_t tag, const void* data, uint64_t bytes);
  Pending irecv(int32_t peer, uint64_t tag, void* data, uint64_t bytes, bp_result* result = nullptr);

  // Aborts as the core does: sets the host's flag, then calls the table's abort.
  void abort(int32_t status, int32_t peer_rank, const std::string& text);
  // Sets the host's abort flag and destroys the agent. Further calls do nothing.
  void close();
  // Called at the beginning of close, and at its end if there was a group.
  std::function<void()> before_close;
  std::function<void(const Host& host)> after_close;

 private:
  int32_t rank_ = 0;
  int32_t size_ = 0;
  World& world_;
  std::unique_ptr<Host> host_;
  const bp_backend& backend_;
  bp_options* options_ = nullptr;
  bp_agent agent_ = {};
  const bp_process_group_api* api_ = nullptr;
  std::shared_ptr<MirrorMemory> mirrors_;
};

// A schema's defaults with some values replaced, in the form that the core passes: durations in nanoseconds, sizes in
// bytes, bools as true or false. Owns the strings.
class OptionValues {
 public:
  OptionValues(const bp_backend& backend, const std::map<std::string, std::string>& replaced);
  const bp_key_value* data() const { return pairs_.data(); }
  uint32_t count() const { return static_cast<uint32_t>(pairs_.size()); }

 private:
  std::vector<std::string> texts_;
  std::vector<bp_key_value> pairs_;
};

// A default value or a user's text in the normal form of its type. Returns malformed text unchanged.
std::string normal_form(uint32_t type, const std::string& text);

}  // namespace backplane::conformance
